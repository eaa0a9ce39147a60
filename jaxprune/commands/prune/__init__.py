"""A trained classifier pruned by patch scorers, without training: accuracy against keep rate, curves, cost, speed."""

from jaxprune.commands.prune.run import check, completed, measure, run

__all__ = ["check", "completed", "measure", "run"]
