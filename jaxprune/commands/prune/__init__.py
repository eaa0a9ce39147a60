"""A trained classifier pruned by patch scorers, without training: accuracy against keep rate, curves, cost, speed."""

from jaxprune.commands.prune.run import completed, measure, run
from jaxprune.commands.prune.settings import Settings

__all__ = ["Settings", "completed", "defaults", "measure", "run"]

defaults = Settings.defaults
