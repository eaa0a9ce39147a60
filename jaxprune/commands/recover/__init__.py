"""Heals a network under token-reduction plans: the dense network teaches it, on images without labels."""

from jaxprune.commands.recover.run import run
from jaxprune.commands.recover.settings import Settings

__all__ = ["Settings", "defaults", "run"]

defaults = Settings.defaults
