"""Token-reduction plans side by side: FLOPs, measured against theoretical speed-up, accuracy, pictures."""

from jaxprune.commands.benchmark.run import Measured, describe, measure, run

__all__ = ["Measured", "describe", "measure", "run"]
