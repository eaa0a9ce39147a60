"""Accuracy of a trained classifier on held-out data: overall, by class, and its confusions."""

from jaxprune.commands.evaluate.run import assess, run
from jaxprune.commands.evaluate.settings import Settings

__all__ = ["Settings", "assess", "defaults", "run"]

defaults = Settings.defaults
