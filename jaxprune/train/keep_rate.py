"""Training under a plan that changes by step, such as a keep rate that falls by epoch (EViT)."""

import logging
from collections.abc import Callable, Mapping

from jaxprune import reduction
from jaxprune.errors import UserError
from jaxprune.reduction.evit import warm_up
from jaxprune.train.step import LossFn

_log = logging.getLogger(__name__)


class ByStep:
    """The loss of every step: one loss, hence one program, for each plan.

    Args:
      plans: maps a step to the plan that it trains.
      loss_of: maps a plan to the loss of the network under it.
    """

    def __init__(self, plans: Callable[[int], reduction.Plan], loss_of: Callable[[reduction.Plan], LossFn]):
        self._plans, self._loss_of = plans, loss_of
        self._losses: dict[reduction.Plan, LossFn] = {}

    def at(self, step: int) -> LossFn:
        """The loss of the step after `step`."""
        plan = self._plans(step)
        if plan not in self._losses:
            self._losses[plan] = self._loss_of(plan)
        return self._losses[plan]


class KeepRateWarmUp(ByStep):
    """The losses of a run whose keep rate falls from 1 to the plan's.

    Args:
      plan: the plan with the final keep rate.
      steps_per_epoch: optimizer steps.
      schedule: the arguments `start` and `epochs` of `reduction.evit.warm_up`.
      loss_of: maps a plan to the loss of the network under it.

    Raises:
      UserError: the plan has no single keep rate, or its method has weights for one number of tokens.
    """

    def __init__(
        self,
        plan: reduction.Plan | None,
        steps_per_epoch: float,
        schedule: Mapping[str, int],
        loss_of: Callable[[reduction.Plan], LossFn],
    ):
        if plan is None or plan.method is None or not isinstance(plan.keep_rate, float) or plan.num_keep or plan.r:
            raise UserError("keep_rate_warmup lowers one keep_rate: give reduction.method and a single keep_rate.")
        if plan.has_parameters:
            raise UserError(
                f"keep_rate_warmup changes the number of tokens, but the weights of {plan.method} are for a fixed"
                " number: set keep_rate_warmup.epochs=0, or use a method without weights, such as evit."
            )
        self._plan, self._steps_per_epoch, self._schedule = plan, steps_per_epoch, dict(schedule)
        self._rate: float | None = None
        super().__init__(self._at, loss_of)

    def _at(self, step: int) -> reduction.Plan:
        rate = warm_up(int(step // self._steps_per_epoch), self._plan.keep_rate, **self._schedule)
        if rate != self._rate:
            _log.info("The keep rate is %.3g from step %d on.", rate, step + 1)
            self._rate = rate
        return self._plan.with_keep_rate(rate)
