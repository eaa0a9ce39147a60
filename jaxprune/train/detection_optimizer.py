"""How detectron2 trains ViTDet: which parameters decay, and the steps of the learning rate."""

from collections.abc import Callable, Sequence
from typing import Any

from jaxprune.errors import UserError
from jaxprune.ops.tracing import numpy_of

_ENCODER = "encoder."


def decays(names: Sequence[str]) -> dict[str, bool]:
    """Returns which parameters decay: all but the absolute positions and the norms of the ViT's blocks.

    Biases, relative positions, and the norms of pyramid and heads decay too, as in the published code.
    """
    exempt = lambda name: name.startswith(_ENCODER) and (name.endswith("pos_embed") or ".norm" in name)
    return {name: not exempt(name) for name in names}


def warmup_steps(
    lr: float,
    steps: int,
    *,
    milestones: Sequence[int],
    gamma: float = 0.1,
    warmup: int = 250,
    warmup_factor: float = 0.001,
) -> Callable[[Any], Any]:
    """Builds a rate that falls by `gamma` at each milestone, after a linear warm-up.

    >>> rate = warmup_steps(1e-4, 184_375, milestones=(163_889, 177_546))
    >>> [round(float(rate(step)) / 1e-4, 4) for step in (0, 125, 250, 163_889, 177_546)]
    [0.001, 0.5005, 1.0, 0.1, 0.01]

    Args:
      lr: learning rate between warm-up and first milestone.
      steps: length of the run.
      milestones: steps.
      warmup: length of the warm-up; it ends at the rate of its last step.
      warmup_factor: factor at the first step.

    Raises:
      UserError: a milestone or the warm-up lies after the end.
    """
    if warmup > steps or any(milestone > steps for milestone in milestones):
        raise UserError(f"warmup={warmup} and milestones={tuple(milestones)} do not fit a run of {steps} steps.")

    def factor(step: Any, xp: Any) -> Any:
        passed = sum((step >= milestone) * 1.0 for milestone in milestones)
        return gamma**passed * xp.ones_like(step, dtype=float)

    def schedule(step: Any) -> Any:
        xp = numpy_of(step)
        part = warmup_factor + (1.0 - warmup_factor) * step / max(warmup, 1)
        return lr * xp.where(step < warmup, part, factor(step, xp))

    return schedule
