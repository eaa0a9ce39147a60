"""Measures networks × methods × keep rates on this machine in one table with hashes, or checks such a table."""

from jaxprune.commands.leaderboard.run import check, missing, run

__all__ = ["check", "missing", "run"]
