"""Tuning of plans to a device: the cheapest plan with bounded risk, or the safest with bounded cost, guaranteed."""

from jaxprune.tune.pixel_images import PixelImages
from jaxprune.tune.requirement import Bound
from jaxprune.tune.tuned import Settings, Tuned
from jaxprune.tune.tuning import tune

__all__ = ["Bound", "PixelImages", "Settings", "Tuned", "tune"]
