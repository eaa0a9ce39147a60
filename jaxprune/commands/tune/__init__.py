"""The cheapest token-reduction plan for a network on this device, with a statistical guarantee on its risk."""

from jaxprune.commands.tune.run import check, missing, run

__all__ = ["check", "missing", "run"]
