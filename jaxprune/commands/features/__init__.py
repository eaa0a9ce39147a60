"""Extracts features of images to files: CLS tokens, pooled vectors, patch maps; dense or under a plan."""

from jaxprune.commands.features.run import check, missing, run

__all__ = ["check", "missing", "run"]
