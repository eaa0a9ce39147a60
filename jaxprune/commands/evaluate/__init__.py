"""Accuracy of a trained classifier on held-out data: overall, by class, and its confusions."""

from jaxprune.commands.evaluate.run import assess, run

__all__ = ["assess", "run"]
