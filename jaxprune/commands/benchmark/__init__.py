"""Token-reduction plans side by side: FLOPs, measured against theoretical speed-up, accuracy, pictures."""

from jaxprune.commands.benchmark.run import Measured, describe, measure, run
from jaxprune.commands.benchmark.settings import Settings

__all__ = ["Measured", "Settings", "defaults", "describe", "measure", "run"]

defaults = Settings.defaults
