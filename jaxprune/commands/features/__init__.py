"""Extracts features of images to files: CLS tokens, pooled vectors, patch maps; dense or under a plan."""

from jaxprune.commands.features.run import run
from jaxprune.commands.features.settings import Settings

__all__ = ["Settings", "defaults", "run"]

defaults = Settings.defaults
