"""linf: keep a disc of patches around the centre of the image, by chessboard distance (Haurum et al., 2023, Sec. 3)."""

from jaxprune.reduction.parts.base import Reducer
from jaxprune.reduction.parts.radial_patterns import RadialPattern


class LInf(RadialPattern, Reducer):
    """Keeps the patches with the smallest chessboard distance from the centre."""

    norm = "linf"
