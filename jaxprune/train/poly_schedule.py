"""The learning rate of segmentation recipes: linear or polynomial in steps, with a warm-up that multiplies it."""

from collections.abc import Callable
from typing import Any

from jaxprune.errors import UserError
from jaxprune.ops.tracing import numpy_of


def warmup_poly(
    lr: float,
    steps: int,
    *,
    power: float = 1.0,
    min_lr: float = 0.0,
    warmup_steps: int = 0,
    warmup_ratio: float = 1e-6,
) -> Callable[[Any], Any]:
    """Builds mmsegmentation's schedule: (lr - min_lr) · (1 - t / steps)^power + min_lr at step t.

    During the warm-up the rate is multiplied by 1 - (1 - t / warmup_steps) (1 - warmup_ratio).

    >>> rate = warmup_poly(1e-4, 160_000, warmup_steps=1500)
    >>> f"{float(rate(0)):.0e}", f"{float(rate(80_000)):.0e}"
    ('1e-10', '5e-05')

    Args:
      lr: learning rate at the first step, without the warm-up.
      steps: length of the run.
      warmup_ratio: factor at the first step.

    Raises:
      UserError: the warm-up is longer than the run.
    """
    if warmup_steps > steps:
        raise UserError(f"warmup_steps={warmup_steps} are more than the {steps} steps of the run: shorten the warm-up.")

    def schedule(step):
        xp = numpy_of(step)
        rate = (lr - min_lr) * (1.0 - xp.minimum(step / steps, 1.0)) ** power + min_lr
        if not warmup_steps:
            return rate
        factor = 1.0 - (1.0 - step / warmup_steps) * (1.0 - warmup_ratio)
        return xp.where(step < warmup_steps, rate * factor, rate)

    return schedule
