"""Supervised training of a vision transformer, from pre-trained weights or from scratch, dense or under a plan."""

from jaxprune.commands.finetune.page import describe
from jaxprune.commands.finetune.run import described, run
from jaxprune.commands.finetune.settings import Settings, smoke

__all__ = ["Settings", "defaults", "describe", "described", "recipe", "run", "smoke"]

defaults, recipe = Settings.defaults, Settings.recipe
