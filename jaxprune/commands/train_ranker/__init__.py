"""Training of a patch ranker without labels (LTRP), from the reconstructions of a masked autoencoder."""

from jaxprune.commands.train_ranker.page import describe
from jaxprune.commands.train_ranker.run import run
from jaxprune.commands.train_ranker.settings import check, defaults, missing, smoke

__all__ = ["check", "defaults", "describe", "missing", "run", "smoke"]
