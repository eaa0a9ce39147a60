"""The cheapest token-reduction plan for a network on this device, with a statistical guarantee on its risk."""

from jaxprune.commands.tune.run import run
from jaxprune.commands.tune.settings import Settings

__all__ = ["Settings", "defaults", "run"]

defaults = Settings.defaults
