"""Exports a network, dense or under a plan: StableHLO for plain JAX, ONNX for ONNX Runtime."""

from jaxprune.commands.export.run import check, missing, run

__all__ = ["check", "missing", "run"]
