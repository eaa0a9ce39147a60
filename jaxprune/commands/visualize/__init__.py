"""Pictures of a pre-trained model's reconstructions: original, masked, reconstructed, thrown cells marked."""

from jaxprune.commands.visualize.run import run
from jaxprune.commands.visualize.settings import Settings

__all__ = ["Settings", "defaults", "run"]

defaults = Settings.defaults
