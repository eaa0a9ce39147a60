"""Training and tests of detectors: the objects of an image, their boxes and masks, dense or under a plan."""

from jaxprune.commands.detect.page import describe
from jaxprune.commands.detect.run import run
from jaxprune.commands.detect.settings import Settings, smoke

__all__ = ["Settings", "defaults", "describe", "recipe", "run", "smoke"]

defaults, recipe = Settings.defaults, Settings.recipe
