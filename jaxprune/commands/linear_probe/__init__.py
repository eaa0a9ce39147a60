"""Linear probing: the accuracy of a linear classifier on frozen features, by MAE's protocol.

The CLS token after the final norm, BatchNorm without scale and offset, one linear layer, LARS.
"""

from jaxprune.commands.linear_probe.run import run
from jaxprune.commands.linear_probe.settings import Settings, smoke

__all__ = ["Settings", "defaults", "recipe", "run", "smoke"]

defaults, recipe = Settings.defaults, Settings.recipe
