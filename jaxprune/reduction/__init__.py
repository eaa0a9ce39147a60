"""Token reduction: the methods of "Which Tokens to Use?" (Haurum et al., 2023) and others, one file each.

Plans, and what methods share, are in `reduction.parts`.
"""

from jaxprune.nn.tokens import Attended, Tokens
from jaxprune.ops.unmerge import unmerge
from jaxprune.reduction.parts.apply_plan import apply, constraints, installed
from jaxprune.reduction.parts.base import LossContext, Reducer, Step, StepReport
from jaxprune.reduction.parts.find_method import methods, register
from jaxprune.reduction.parts.keep_rows import best, keep_rows, present
from jaxprune.reduction.parts.plan import At, Plan

DENSE = "dense"  # the name of a network without a plan, beside those of plans

__all__ = [
    "DENSE",
    "At",
    "Attended",
    "LossContext",
    "Plan",
    "Reducer",
    "Step",
    "StepReport",
    "Tokens",
    "apply",
    "best",
    "constraints",
    "installed",
    "keep_rows",
    "methods",
    "present",
    "register",
    "standalone",
    "unmerge",
    "untrained",
]


def standalone() -> tuple[str, ...]:
    """Returns the names of the methods that work without a scorer, on images and clips."""
    return tuple(sorted(name for name, cls in methods().items() if cls.where != "embed" and 2 in cls.dims))


def untrained() -> tuple[str, ...]:
    """Returns those of `standalone` that need no training: without parameters, as they are off the shelf."""
    return tuple(name for name in standalone() if not methods()[name].has_parameters({}))
