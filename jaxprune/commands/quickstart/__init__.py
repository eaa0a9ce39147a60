"""The whole workflow in minutes: PR-MIM pre-training, fine-tuning, training from scratch, patch ranking, pruning."""

from jaxprune.commands.quickstart.run import run
from jaxprune.commands.quickstart.settings import Settings, smoke

__all__ = ["Settings", "defaults", "run", "smoke"]

defaults = Settings.defaults
