"""What methods that merge rows in pairs have in common: at most half of the rows leave in one matching."""

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxprune.errors import UserError
from jaxprune.reduction.parts.base import Reducer
from jaxprune.reduction.parts.find_method import shown_name
from jaxprune.reduction.parts.step_sizes import Rate


class PairMerger(Reducer):
    """A method that merges rows in pairs: where a plan asks for fewer rows, `num_tokens` is the true count."""

    where = "after"
    drops = False
    proportional = True

    @classmethod
    def rounds_of(cls, options: Mapping[str, Any]) -> int | None:
        """Number of matchings in a step; None if the method has no such option."""
        return None

    @classmethod
    def check(cls, plan) -> None:
        before = 1.0
        for at in plan.steps:
            if not isinstance(at.amount, Rate):
                return  # incoming rows are known only inside a network; `num_tokens` is the true count
            if issubclass(at.reducer_class, cls) and at.amount.rate < (least := before * cls._least(at)) - 1e-9:
                raise cls._too_low(plan, at, before, least)
            before = at.amount.rate

    @classmethod
    def _least(cls, at: Any) -> float:
        """The smallest share of the rows that a step, or each step of a common plan, can leave."""
        return 0.5 ** max(cls.rounds_of(dict(at.options)) or 1, 1)

    @classmethod
    def _too_low(cls, plan: Any, at: Any, before: float, least: float) -> UserError:
        common = plan.method is not None
        rate, remedy = (plan.keep_rate, cls._nearest(plan)) if common else (at.amount.rate, least)
        place, instead = "step", ""
        if cls.rounds_of(dict(at.options)) is not None:
            place, instead = "round", f", or rounds={math.ceil(math.log2(before / at.amount.rate) - 1e-9)}"
        return UserError(
            f"keep_rate {rate} is too low for {shown_name(cls)}, which merges tokens in pairs, so keeps at least half "
            f"at each {place}: use {remedy}{instead}."
        )

    @classmethod
    def _nearest(cls, plan: Any) -> float | tuple[float, ...]:
        keep_rate, least = plan.keep_rate, cls._least(plan)
        if not isinstance(keep_rate, tuple):
            return least
        reached = [1.0]
        for rate in keep_rate:
            reached.append(max(rate, reached[-1] * least))
        return tuple(reached[1:])

    def num_asked(self) -> int:
        """Number of rows that are to leave: as published, the difference between planned counts.

        Where pairs do not suffice, later steps do not make up for it.
        """
        before = self.step.tokens_in if self.step.planned_in is None else self.step.planned_in
        return max(before - self.step.num_keep, 0)

    def num_merged(self) -> int:
        """Number of rows that leave by merging."""
        return min(self.num_asked(), self.step.tokens_in // 2)

    def num_tokens(self) -> int:
        return self.step.tokens_in - self.num_merged()

    def num_planned(self) -> int:
        return self.step.num_keep


def alternating(even: Int[Array, "b e"], odd: Int[Array, "b o"]) -> Int[Array, "b n"]:
    """Puts values at even and at odd places, the first at place 0; there is at most one more at even ones."""
    padded = jnp.pad(odd, ((0, 0), (0, even.shape[1] - odd.shape[1])))
    rows = jnp.stack([even, padded], axis=2).reshape(even.shape[0], 2 * even.shape[1])
    return rows[:, : even.shape[1] + odd.shape[1]]
