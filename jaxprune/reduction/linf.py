"""linf: keep a disc of patches around the centre of the image, by chessboard distance (Haurum et al., 2023, Sec. 3)."""

from jaxprune.reduction.base import Reducer
from jaxprune.reduction.radial_patterns import RadialPattern


class LInf(RadialPattern, Reducer):
    """Keeps the patches with the smallest chessboard distance from the centre."""

    norm = "linf"
