"""Training of a patch ranker without labels (LTRP), from the reconstructions of a masked autoencoder."""

from jaxprune.commands.train_ranker.page import describe
from jaxprune.commands.train_ranker.run import run
from jaxprune.commands.train_ranker.settings import Settings, smoke

__all__ = ["Settings", "defaults", "describe", "recipe", "run", "smoke"]

defaults, recipe = Settings.defaults, Settings.recipe
