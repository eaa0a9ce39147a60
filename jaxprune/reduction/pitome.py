"""PiToMe: merge tokens of high energy, those that are like many others (Tran et al., 2024)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxprune.errors import UserError, unknown
from jaxprune.reduction.parts import clusters
from jaxprune.reduction.parts.base import Step
from jaxprune.reduction.parts.cosines import Cosines
from jaxprune.reduction.parts.keep_rows import absent_rows, best, present, unchanged
from jaxprune.reduction.parts.pair_merging import PairMerger, alternating
from jaxprune.reduction.parts.row_maps import places
from jaxprune.reduction.tome import match

ORDERS = ("deit", "mae")
PARTNERS = ("all", "energetic")
MARGIN = 0.75


def energy(
    metric: Float[Array, "b n e"], margin: float, alpha: float = 1.0, *, absent: Bool[Array, "b n"] | None = None
) -> Float[Array, "b n"]:
    """The mean over all rows l of f(cosine - margin) for each row, its own cosine included; without gradient.

    f(z) is z, below 0 it is alpha · (exp(z) - 1). Rows in large groups of similar rows have a high energy.

    Args:
      metric: the vectors that are compared.
      absent: True for rows that do not count; they get an infinite energy.
    """
    presence = jnp.ones(metric.shape[:2]) if absent is None else jnp.where(absent, 0.0, 1.0)

    def of_rows(cosines):
        above = cosines - margin
        values = jnp.where(above >= 0, above, alpha * jnp.expm1(jnp.minimum(above, 0)))
        return (values * presence[:, None, :]).sum(2)

    means = Cosines(metric).by_rows(of_rows) / jnp.maximum(presence.sum(1, keepdims=True), 1)
    return means if absent is None else jnp.where(absent, jnp.inf, means)


def pair(
    metric: Float[Array, "b n e"],
    order: Int[Array, "b n"],
    num_merged: int,
    partners: str,
    *,
    absent: Bool[Array, "b n"] | None = None,
) -> tuple[Int[Array, "b k"], Int[Array, "b n"]]:
    """Pairs rows that alternate between two sets A and B in a given order, by the largest cosine; without gradient.

    Args:
      metric: the vectors that are compared.
      order: the rows by falling energy.
      num_merged: number of pairs.
      partners: "all" rows alternate, and the best pairs merge; or only the "energetic" ones do, the first 2 ·
        `num_merged`, and each of A merges into its best row of B.
      absent: see `tome.match`.

    Returns:
      (kept, row_map): for each outgoing row, the incoming row that others merged into; what is left of A by falling
      similarity (or the rows that do not take part, by falling energy), then B. For each incoming row, the outgoing row
      that holds it.
    """
    n = metric.shape[1]
    taking_part = n if partners == "all" else 2 * num_merged
    of_order = jax.vmap(lambda values, ids: values[ids])
    metric = of_order(metric, order[:, :taking_part])
    absent = None if absent is None else of_order(absent, order[:, :taking_part])
    pairs = match(metric, num_merged, 0, absent)

    ranks = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[None], order.shape)
    kept = jnp.concatenate([2 * pairs.unmerged, ranks[:, taking_part:], ranks[:, 1:taking_part:2]], axis=1)
    merges = places(pairs.merged, pairs.best.shape[1]) >= 0
    target_a = jnp.where(merges, 1 + 2 * pairs.best, ranks[:, 0:taking_part:2])
    paired = alternating(target_a, ranks[:, 1:taking_part:2])
    target = jnp.concatenate([paired, ranks[:, taking_part:]], axis=1)
    follow = lambda order, kept, target, numbers, ranks: (order[kept], numbers[target][ranks])
    return jax.vmap(follow)(order, kept, target, places(kept, n), places(order, n))


class PiToMe(PairMerger):
    """Ranks rows by energy, and merges those of high energy in pairs into means weighted by size.

    At most half of the tokens can merge: where a plan asks for fewer rows than that leaves, `num_tokens` is the true
    count. Outgoing rows are in the order of `pair`; `kept` lists the rows that others merged into. The schedules of the
    publication go over its blocks, all of which reduce; these go over the S steps of a plan, s = 0, 1, ….

    >>> from jaxprune.reduction import Plan
    >>> Plan("pitome", keep_rate=0.9, reduction_loc=(3,), margin=0.5).text
    'pitome@3:keep_rate=0.9,margin=0.5'

    Args:
      margin: similarity from which two rows count as alike; None is 0.75 (1 - s / S), as for DeiT and MAE.
      order: "deit": all rows take part in the first half of the steps (rounded up), then only the energetic ones.
        "mae": the reverse.
      partners: which rows can merge, see `pair`, whatever the `order`; None follows it.
      alpha: scale of the energy below the margin.
      proportional: whether later blocks weigh keys by size; not published.

    Raises:
      UserError: there is no such option, or the margin is not a cosine.
    """

    needs = frozenset({"keys"})

    def __init__(
        self,
        step: Step,
        *,
        margin: float | None = None,
        order: str = "deit",
        partners: str | None = None,
        alpha: float = 1.0,
        proportional: bool = False,
        rngs: Any = None,
    ):
        super().__init__(step)
        if order not in ORDERS:
            raise unknown("order", order, ORDERS)
        if partners is not None and partners not in PARTNERS:
            raise unknown("partners", partners, PARTNERS)
        if margin is not None and not -1 <= margin <= 1:
            raise UserError(f"margin={margin} of pitome is not between -1 and 1: use {min(max(margin, -1), 1)}.")
        first_half = step.index < (step.num_steps + 1) // 2
        self.margin = MARGIN * (1 - step.index / step.num_steps) if margin is None else margin
        self.partners = PARTNERS[first_half != (order == "deit")] if partners is None else partners
        self.alpha, self.proportional = alpha, proportional

    def flops(self) -> int:
        """n²·e for the cosines of n keys of width e, a quarter of that for pairs of all rows, k·n·d for k means."""
        n, k, d = self.step.tokens_in, self.num_tokens(), self.step.embed_dim
        if n == k:
            return 0
        taking_part = n if self.partners == "all" else 2 * (n - k)
        pairs = (taking_part // 2) * (taking_part - taking_part // 2)
        return (n * n + pairs) * (d // self.step.num_heads) + k * n * d

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, sizes = self.step.num_prefix_tokens, tokens.size[:, self.step.num_prefix_tokens :]
        if self.num_merged() == 0:
            return unchanged(tokens, prefix)
        metric = present(attended.keys).astype(jnp.float32).mean(1)[:, prefix:]
        absent = absent_rows(tokens, self.step)
        order = best(energy(metric, self.margin, self.alpha, absent=absent), metric.shape[1])
        kept, row_map = pair(metric, order, self.num_merged(), self.partners, absent=absent)
        rows = clusters.weighted_means(tokens.x[:, prefix:], sizes, row_map, self.num_tokens())
        return clusters.clustered(tokens, rows, row_map, kept, self.step)
