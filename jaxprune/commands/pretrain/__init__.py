"""Masked pre-training of a vision transformer by any framework of `jaxprune.mim`."""

from jaxprune.commands.pretrain.frozen_networks import missing
from jaxprune.commands.pretrain.page import describe
from jaxprune.commands.pretrain.run import run
from jaxprune.commands.pretrain.settings import defaults, smoke

__all__ = ["defaults", "describe", "missing", "run", "smoke"]
