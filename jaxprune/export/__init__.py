"""Networks as files for other programs: StableHLO, which plain JAX runs, and ONNX."""

from jaxprune.export.as_cascade import cascade
from jaxprune.export.as_onnx import onnx
from jaxprune.export.as_stablehlo import stablehlo

__all__ = ["cascade", "onnx", "stablehlo"]
