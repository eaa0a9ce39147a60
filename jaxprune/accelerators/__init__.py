"""Programs for TPUs and GPUs that are not here: compiled for described devices, with what the compiler says of them."""

from jaxprune.accelerators.chips import CHIPS, Chip
from jaxprune.accelerators.costs import Costs, DoesNotFit, costs
from jaxprune.accelerators.target import Target, compiling_for, stay_on_cpu

__all__ = [
    "CHIPS",
    "Chip",
    "Costs",
    "DoesNotFit",
    "Target",
    "compiling_for",
    "costs",
    "stay_on_cpu",
]
