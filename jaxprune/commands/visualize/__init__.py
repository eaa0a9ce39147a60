"""Pictures of a pre-trained model's reconstructions: original, masked, reconstructed, thrown cells marked."""

from jaxprune.commands.visualize.run import missing, run

__all__ = ["missing", "run"]
