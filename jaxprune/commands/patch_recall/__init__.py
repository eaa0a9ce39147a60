"""Recall of object patches by scorers: boxes and masks against the keep rate, overall and by class."""

from jaxprune.commands.patch_recall.run import run

__all__ = ["run"]
