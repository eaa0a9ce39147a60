"""Measures networks × methods × keep rates on this machine in one table with hashes, or checks such a table."""

from jaxprune.commands.leaderboard.run import run
from jaxprune.commands.leaderboard.settings import Settings

__all__ = ["Settings", "defaults", "run"]

defaults = Settings.defaults
