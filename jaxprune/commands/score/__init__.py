"""Scores the patches of your own images with any scorers, and compares the patches that each keeps."""

from jaxprune.commands.score.run import run
from jaxprune.commands.score.settings import Settings

__all__ = ["Settings", "defaults", "run"]

defaults = Settings.defaults
