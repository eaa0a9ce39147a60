"""Scores the patches of your own images with any scorers, and compares the patches that each keeps."""

from jaxprune.commands.score.run import check, run

__all__ = ["check", "run"]
