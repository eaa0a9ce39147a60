"""Exports a network, dense or under a plan: StableHLO for plain JAX, ONNX for ONNX Runtime."""

from jaxprune.commands.export.run import run
from jaxprune.commands.export.settings import Settings

__all__ = ["Settings", "defaults", "run"]

defaults = Settings.defaults
