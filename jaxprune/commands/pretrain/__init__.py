"""Masked pre-training of a vision transformer by any framework of `jaxprune.mim`."""

from jaxprune.commands.pretrain.page import describe
from jaxprune.commands.pretrain.run import described, run
from jaxprune.commands.pretrain.settings import Settings, smoke

__all__ = ["Settings", "defaults", "describe", "described", "recipe", "run", "smoke"]

defaults, recipe = Settings.defaults, Settings.recipe
