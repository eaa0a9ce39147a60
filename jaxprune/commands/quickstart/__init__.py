"""The whole workflow in minutes: PR-MIM pre-training, fine-tuning, training from scratch, patch ranking, pruning."""

from jaxprune.commands.quickstart.page import describe
from jaxprune.commands.quickstart.run import run
from jaxprune.commands.quickstart.settings import defaults, smoke

__all__ = ["defaults", "describe", "run", "smoke"]
