"""ToMe: merge the most similar tokens in pairs, weighted by the number of patches they hold (Bolya et al., 2023)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError, unknown
from jaxprune.nn import kernels
from jaxprune.nn.cells import Cells
from jaxprune.nn.site import Site
from jaxprune.nn.tokens import Tokens, take
from jaxprune.ops.blocks import by_rows
from jaxprune.reduction.parts.base import Reducer, Step, StepReport
from jaxprune.reduction.parts.cell_merging import merge_in_cells
from jaxprune.reduction.parts.clusters import first_min
from jaxprune.reduction.parts.keep_rows import compose, present, unchanged
from jaxprune.reduction.parts.merged_position import position_by_rule
from jaxprune.reduction.parts.step_sizes import Rate

UNMERGE = ("stage", "block")


class ToMe(Reducer):
    """Merges by bipartite matching of the keys; later blocks weigh each key by its size (proportional attention).

    The tokens after the prefix alternate between two sets, A (even positions, counting the prefix) and B. Each token of
    A is paired with its most similar token of B, and the most similar pairs merge. Outgoing rows are the rest of A,
    then B. The rest of A is in rising order or, as published, by falling similarity in networks without prefix tokens.
    `kept` lists the token of B that others merged into.

    With window attention (Swin), tokens merge inside the parts that plain and shifted windows have in common
    (`nn.cells`), the same number in each part of a kind, and stay merged until the stage ends. So no token leaves its
    window, and all windows of a block have the same number of rows.

    At most half of the tokens can merge: where a plan asks for fewer rows than that leaves, `num_tokens` is the true
    count.

    Args:
      unmerge: when window attention gets its rows back: after the last block of a "stage", or after the "block" that
        merges, in which case only its MLP is cheaper. Ignored with global attention.
    """

    where = "after"
    needs = frozenset({"keys"})
    proportional = True

    @classmethod
    def check(cls, plan) -> None:
        before = 1.0
        for at in plan.steps:
            if not isinstance(at.amount, Rate):
                return  # incoming rows are known only inside a network; `num_tokens` is the true count
            if at.reducer_class is cls and at.amount.rate < before / 2 - 1e-9:
                common = plan.method is not None
                rate, remedy = (plan.keep_rate, _nearest(plan)) if common else (at.amount.rate, before / 2)
                raise UserError(
                    f"keep_rate {rate} is too low for tome, which merges tokens in pairs, so keeps at least half at "
                    f"each step: use {remedy}."
                )
            before = at.amount.rate

    @classmethod
    def check_site(cls, site: Site) -> None:
        if site.windows is not None and site.cells is None:
            raise UserError(
                f"tome merges inside windows, and at block {site.layer} the map of {site.windows.grid} is not a whole "
                f"number of windows of {site.windows.size}: choose a fitting img_size or window_size, or a method that "
                "ranks rows, such as topk."
            )

    def __init__(self, step: Step, *, unmerge: str = "stage", rngs: Any = None):
        super().__init__(step)
        if unmerge not in UNMERGE:
            raise unknown("unmerge", unmerge, UNMERGE)
        self.merged_in_place = step.cells is not None and unmerge == "stage"

    def num_merged(self) -> int:
        """Number of merged pairs, over all windows if there are any."""
        if self.step.cells is None:
            # As published, the difference between planned counts: where pairs do not suffice, later steps do not make
            # up for it.
            before = self.step.tokens_in if self.step.planned_in is None else self.step.planned_in
            return min(max(before - self.step.num_keep, 0), self.step.tokens_in // 2)
        return self.step.tokens_in - self.step.cells.num_windows * self._planned_in_window(self.step.cells)

    def _planned_in_window(self, cells: Cells) -> int:
        """Tokens that every window is left with."""
        arriving, planned = (cells.tokens_of_window(tokens) for tokens in (self.step.tokens_in, self.step.num_keep))
        return cells.after_merging(arriving, planned)

    def num_tokens(self) -> int:
        return self.step.tokens_in - self.num_merged()

    def num_planned(self) -> int:
        return self.step.num_keep

    def flops(self) -> int:
        # Similarities of A and B, then the sums of what joins.
        pairs = lambda rows: (rows // 2) * (rows - rows // 2)
        similarities, cells = pairs(self.step.tokens_in), self.step.cells
        if cells is not None:
            before, after = (
                cells.held(cells.tokens_of_window(self.step.tokens_in)),
                cells.held(self._planned_in_window(cells)),
            )
            merging = [pairs(was) for was, now in zip(before, after, strict=True) if now < was]
            similarities = cells.num_windows * sum(merging)
        return similarities * (self.step.embed_dim // self.step.num_heads + self.step.embed_dim)

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix = self.step.num_prefix_tokens
        if self.num_merged() == 0:
            return unchanged(tokens, prefix)
        metric = present(attended.keys).astype(jnp.float32).mean(1)[:, prefix:]
        if (cells := self.step.cells) is not None:
            merge_cell = lambda cell, metric, pairs: merge(
                cell, match(metric, pairs, 0), 0, position=self.step.position
            )
            return merge_in_cells(tokens, metric, cells, self._planned_in_window(cells), merge_cell)
        return merge(tokens, match(metric, self.num_merged(), prefix), prefix, position=self.step.position)


class Match(NamedTuple):
    """The pairs to merge; A and B are each numbered from 0, without the prefix.

    Attributes:
      unmerged: the unmerged tokens of A, in outgoing order.
      merged: the merged tokens of A, the most similar pair first.
      best: for each token of A, its most similar token of B.
    """

    unmerged: Int[Array, "b u"]
    merged: Int[Array, "b r"]
    best: Int[Array, "b a"]


def sets(num_prefix_tokens: int) -> tuple[slice, slice]:
    """The rows of A and of B: alternating positions, counting the prefix."""
    first = num_prefix_tokens % 2
    return slice(first, None, 2), slice(1 - first, None, 2)


def match(metric: Float[Array, "b n e"], num_merged: int, num_prefix_tokens: int) -> Match:
    """Pairs each row of A with its most similar row of B by cosine, and finds the best pairs; without gradient.

    Leaving out the prefix is equivalent to giving it a similarity of -inf: it is neither merged nor merged into.
    """
    metric = jax.lax.stop_gradient(metric)
    metric = metric / jnp.linalg.norm(metric, axis=-1, keepdims=True)
    first, second = sets(num_prefix_tokens)

    def most_similar(rows):
        similarity = jax.lax.dot_general(rows, metric[:, second], (((2,), (2,)), ((0,), (0,))))
        return similarity.max(2), first_min(-similarity, axis=2)

    similar, best = by_rows(most_similar, metric[:, first], size=kernels.row_block())
    order = jnp.argsort(-similar, axis=1, stable=True).astype(jnp.int32)
    merged, unmerged = order[:, :num_merged], order[:, num_merged:]
    if num_prefix_tokens:
        unmerged = jnp.sort(unmerged, axis=1)
    return Match(unmerged, merged, best)


def merge(tokens: Tokens, pairs: Match, num_prefix_tokens: int, *, position: str = "mean") -> tuple[Tokens, StepReport]:
    """Merges the pairs into size-weighted means; sizes add up.

    Args:
      position: the position of a merged row: the "mean" of its rows, or that of the "kept" row of B.
    """
    first, second = sets(num_prefix_tokens)
    x, size = tokens.x[:, num_prefix_tokens:], tokens.size[:, num_prefix_tokens:]
    num_unmerged, num_b = pairs.unmerged.shape[1], x[:, second].shape[1]

    # Rows are summed by a product with zeros and ones, which is exact and faster than a scatter on every device.
    merged = jax.vmap(lambda ids: jnp.zeros(pairs.best.shape[1:], bool).at[ids].set(True))(pairs.merged)
    place, policy = tokens.position[:, num_prefix_tokens:], tokens.policy[:, num_prefix_tokens:]
    values = [size[:, :, None], x.astype(jnp.float32) * size[:, :, None], place * size[:, :, None], policy[:, :, None]]

    def sums(ids, *of_b):
        joins = (pairs.best[:, None, :] == ids[:, :, None]) & merged[:, None, :]
        return [_sum(joins, values[:, first]) + of_b for values, of_b in zip(values, of_b, strict=True)]

    ids_b = jnp.broadcast_to(jnp.arange(num_b, dtype=jnp.int32)[None, :], (x.shape[0], num_b))
    of_b = [values[:, second] for values in values]
    size_b, x_b, place_b, policy_b = by_rows(sums, ids_b, *of_b, size=kernels.row_block())
    # Two absent rows (size 0) merge into an absent row.
    counted = jnp.maximum(size_b, jnp.finfo(jnp.float32).tiny)
    x_b = x_b / counted
    place_b = position_by_rule(position, place_b / counted, place[:, second])
    policy_b = jnp.minimum(policy_b, 1.0)[:, :, 0]

    def one(pairs, merged):
        rank = jnp.zeros(pairs.best.shape, jnp.int32).at[pairs.unmerged].set(jnp.arange(num_unmerged, dtype=jnp.int32))
        row_map = jnp.zeros((x.shape[1],), jnp.int32)
        row_map = row_map.at[first].set(jnp.where(merged, num_unmerged + pairs.best, rank))
        return row_map.at[second].set(num_unmerged + jnp.arange(num_b, dtype=jnp.int32))

    row_map = jax.vmap(one)(pairs, merged)
    kept_b = jnp.broadcast_to(second.start + 2 * jnp.arange(num_b, dtype=jnp.int32)[None, :], size_b.shape[:2])

    def joined(values: Array, values_b: Array) -> Array:
        unmerged = take(values[:, num_prefix_tokens:][:, first], pairs.unmerged, 0)
        return jnp.concatenate([values[:, :num_prefix_tokens], unmerged, values_b], axis=1)

    reduced = Tokens(
        x=joined(tokens.x, x_b.astype(x.dtype)),
        size=joined(tokens.size, size_b[:, :, 0]),
        policy=joined(tokens.policy, policy_b),
        assign=compose(tokens.assign, row_map),
        position=joined(tokens.position, place_b),
    )
    return reduced, StepReport(
        row_map=row_map, kept=jnp.concatenate([first.start + 2 * pairs.unmerged, kept_b], axis=1)
    )


def _sum(joins: Array, values: Float[Array, "b a d"]) -> Float[Array, "b k d"]:
    return jax.lax.dot_general(
        joins.astype(values.dtype), values, (((2,), (1,)), ((0,), (0,))), precision=jax.lax.Precision.HIGHEST
    )


def _nearest(plan: Any) -> float | tuple[float, ...]:
    keep_rate = plan.keep_rate
    if not isinstance(keep_rate, tuple):
        return 0.5
    reached = [1.0]
    for rate in keep_rate:
        reached.append(max(rate, reached[-1] / 2))
    return tuple(reached[1:])
