"""Training and tests of segmentation networks: the class of each pixel, by any ViT, dense or under a plan."""

from jaxprune.commands.segment.page import describe
from jaxprune.commands.segment.run import run
from jaxprune.commands.segment.settings import Settings, smoke

__all__ = ["Settings", "defaults", "describe", "recipe", "run", "smoke"]

defaults, recipe = Settings.defaults, Settings.recipe
