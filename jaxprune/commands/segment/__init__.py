"""Training and tests of segmentation networks: the class of each pixel, by any ViT, dense or under a plan."""

from jaxprune.commands.segment.page import describe
from jaxprune.commands.segment.run import run
from jaxprune.commands.segment.settings import Settings, smoke
from jaxprune.commands.segment.timed_images import timed_images

__all__ = ["Settings", "defaults", "describe", "recipe", "run", "smoke", "timed_images"]

defaults, recipe = Settings.defaults, Settings.recipe
