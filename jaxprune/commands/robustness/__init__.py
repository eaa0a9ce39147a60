"""A trained classifier, dense and under plans, on held-out images with the corruptions of ImageNet-C."""

from jaxprune.commands.robustness.run import run
from jaxprune.commands.robustness.settings import Settings

__all__ = ["Settings", "defaults", "run"]

defaults = Settings.defaults
