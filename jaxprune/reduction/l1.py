"""l1: keep a disc of patches around the centre of the image, by city-block distance (Haurum et al., 2023, Sec. 3)."""

from jaxprune.reduction.parts.base import Reducer
from jaxprune.reduction.parts.radial_patterns import RadialPattern


class L1(RadialPattern, Reducer):
    """Keeps the patches with the smallest city-block distance from the centre."""

    norm = "l1"
