"""Recall of object patches by scorers: boxes and masks against the keep rate, overall and by class."""

from jaxprune.commands.patch_recall.run import run
from jaxprune.commands.patch_recall.settings import Settings

__all__ = ["Settings", "defaults", "run"]

defaults = Settings.defaults
