"""ToMe: merge the most similar tokens in pairs, weighted by the number of patches they hold (Bolya et al., 2023)."""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxprune.errors import UserError, unknown
from jaxprune.nn import attention_kernels
from jaxprune.nn.site import Site
from jaxprune.nn.tokens import Tokens, take
from jaxprune.ops.blocks import by_rows
from jaxprune.reduction.parts import rows_by_product
from jaxprune.reduction.parts.base import Step, StepReport
from jaxprune.reduction.parts.cell_merging import merge_in_cells
from jaxprune.reduction.parts.clusters import first_min
from jaxprune.reduction.parts.cosines import unit
from jaxprune.reduction.parts.keep_rows import absent_rows, keep_rows, present, unchanged
from jaxprune.reduction.parts.merged_position import position_by_rule
from jaxprune.reduction.parts.pair_merging import PairMerger
from jaxprune.reduction.parts.row_maps import compose
from jaxprune.reduction.parts.step_sizes import whole

UNMERGE = ("stage", "block")
MERGES = ("mean", "mlerp", "tofu", "prune")
_BELOW = -2.0  # below every cosine


class ToMe(PairMerger):
    """Merges by bipartite matching of the keys; later blocks weigh each key by its size (proportional attention).

    The tokens after the prefix alternate between two sets, A (even positions, counting the prefix) and B. Each token of
    A is paired with its most similar token of B, and the most similar pairs merge. Outgoing rows are the rest of A,
    then B. The rest of A is in rising order or, as published, by falling similarity in networks without prefix tokens.
    `kept` lists the token of B that others merged into.

    With window attention (Swin), tokens merge inside the parts that plain and shifted windows have in common
    (`nn.window_cells`), the same number in each part of a kind, and stay merged until the stage ends. So no token
    leaves its window, and all windows of a block have the same number of rows.

    At most half of the tokens can merge in a round: where a plan asks for fewer rows than that leaves, `num_tokens` is
    the true count.

    >>> from jaxprune.reduction import At
    >>> At(3, "tome", keep_rate=0.4, rounds=2)
    At(3, 'tome', keep_rate=0.4, rounds=2)

    Args:
      unmerge: when window attention gets its rows back: after the last block of a "stage", or after the "block" that
        merges, in which case only its MLP is cheaper. Ignored with global attention.
      rounds: number of matchings in a step, each of nearly the same number of pairs; between them, keys are averaged as
        tokens are. Not published.
      merge: what becomes of a pair: its "mean", weighted by size; "mlerp", that mean with the larger norm of the pair
        (ToFu, Kim et al., 2024); "tofu", the unweighted mean times the larger norm over that of the row of B,
        as PiToMe's authors coded it; "prune" drops the row of A, as ToFu does in early blocks.
      proportional: whether later blocks weigh keys by size.

    Raises:
      UserError: there is no such option, or no row can be dropped because windows have to stay whole.
    """

    needs = frozenset({"keys"})

    @classmethod
    def rounds_of(cls, options: Mapping[str, Any]) -> int:
        return whole("rounds", options.get("rounds", 1))

    @classmethod
    def check_site(cls, site: Site) -> None:
        if site.windows is not None and site.cells is None:
            raise UserError(
                f"tome merges inside windows, and at block {site.layer} the map of {site.windows.grid} is not a whole "
                f"number of windows of {site.windows.size}: choose a fitting img_size or window_size, or a method that "
                "ranks rows, such as topk."
            )

    def __init__(
        self,
        step: Step,
        *,
        unmerge: str = "stage",
        rounds: int = 1,
        merge: str = "mean",
        proportional: bool = True,
        rngs: Any = None,
    ):
        super().__init__(step)
        if unmerge not in UNMERGE:
            raise unknown("unmerge", unmerge, UNMERGE)
        if merge not in MERGES:
            raise unknown("merge", merge, MERGES)
        if whole("rounds", rounds) < 1:
            raise UserError(f"rounds={rounds}: tome needs at least 1 round of matching.")
        if merge == "prune" and step.cells is not None:
            raise UserError(f"merge='prune' drops rows, and the windows of block {step.layer} are whole: use 'mean'.")
        self.rounds, self.merge, self.proportional = rounds, merge, proportional
        self.drops = merge == "prune"
        self.merged_in_place = step.cells is not None and unmerge == "stage"

    def rows_by_round(self) -> list[int]:
        """Number of rows after each round that merges any, of every window if there are windows."""
        cells, rows = self.step.cells, self.step.tokens_in
        if cells is None:
            target = rows - self.num_asked()
            after = lambda rows, fewest: max(fewest, rows - rows // 2)
        else:
            rows, target = (cells.tokens_of_window(tokens) for tokens in (rows, self.step.num_keep))
            after = cells.after_merging
        counts = [rows]
        for left in range(self.rounds, 0, -1):
            counts.append(after(counts[-1], counts[-1] - -(-(counts[-1] - target) // left)))
        return [count for before, count in itertools.pairwise(counts) if count < before]

    def num_merged(self) -> int:
        """Number of rows that leave by merging, over all windows if there are any."""
        return self.step.tokens_in - self.num_tokens()

    def num_tokens(self) -> int:
        windows = 1 if self.step.cells is None else self.step.cells.num_windows
        counts = self.rows_by_round()
        return windows * counts[-1] if counts else self.step.tokens_in

    def flops(self) -> int:
        # In each round, similarities of A and B, then the sums of what joins; between rounds, those of the keys.
        pairs = lambda rows: (rows // 2) * (rows - rows // 2)
        cells, rows, similarities = self.step.cells, self.step.tokens_in, []
        if cells is not None:
            rows = cells.tokens_of_window(rows)
        for count in self.rows_by_round():
            if cells is None:
                similarities.append(pairs(rows) if count < rows else 0)
            else:
                merging = [
                    pairs(was) for was, now in zip(cells.held(rows), cells.held(count), strict=True) if now < was
                ]
                similarities.append(cells.num_windows * sum(merging))
            rows = count
        key_width = self.step.embed_dim // self.step.num_heads
        joins = 0 if self.merge == "prune" else self.step.embed_dim
        return sum(similarities) * (key_width + joins) + sum(similarities[:-1]) * (key_width if joins else 0)

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix = self.step.num_prefix_tokens
        if self.num_merged() == 0:
            return unchanged(tokens, prefix)
        metric = present(attended.keys).astype(jnp.float32).mean(1)
        if self.rounds == 1:
            return self._round(tokens, metric, self.rows_by_round()[0], self.merge)
        metric = unit(metric)
        _, report = unchanged(tokens, prefix)
        for count in self.rows_by_round():
            averaged, _ = self._round(tokens._replace(x=metric), metric, count, self.merge_of_keys)
            tokens, latest = self._round(tokens, metric, count, self.merge)
            before, now = jnp.asarray(report.kept), jnp.asarray(latest.kept)
            kept = jnp.take_along_axis(before, now, axis=1)
            report, metric = StepReport(compose(report.row_map, latest.row_map), kept), averaged.x
        return tokens, report

    @property
    def merge_of_keys(self) -> str:
        """How keys merge between rounds."""
        return "prune" if self.merge == "prune" else "mean"

    def _round(self, tokens: Tokens, metric: Array, count: int, rule: str) -> tuple[Tokens, StepReport]:
        """One matching, and what follows from it, that leaves `count` rows (of every window)."""
        prefix, cells, position = self.step.num_prefix_tokens, self.step.cells, self.step.position
        metric = metric[:, prefix:]
        if cells is None:
            pairs = match(metric, metric.shape[1] - count, prefix, absent_rows(tokens, self.step))
            return merge(tokens, pairs, prefix, position=position, rule=rule, has_absent=self.step.has_absent)
        in_cell = lambda cell, metric, pairs: merge(cell, match(metric, pairs, 0), 0, position=position, rule=rule)
        return merge_in_cells(tokens, metric, cells, count, in_cell)


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


def match(
    metric: Float[Array, "b n e"],
    num_merged: int,
    num_prefix_tokens: int,
    absent: Bool[Array, "b n"] | None = None,
) -> Match:
    """Pairs each row of A with its most similar row of B by cosine, and finds the best pairs; without gradient.

    Leaving out the prefix is equivalent to giving it a similarity of -inf: it is neither merged nor merged into.

    Args:
      absent: True for rows that hold nothing: those of A merge first, and none merges into those of B.
    """
    metric = unit(metric)
    first, second = sets(num_prefix_tokens)

    def most_similar(rows):
        similarity = jax.lax.dot_general(rows, metric[:, second], (((2,), (2,)), ((0,), (0,))))
        if absent is not None:
            similarity = jnp.where(absent[:, None, second], _BELOW, similarity)
        return similarity.max(2), first_min(-similarity, axis=2)

    similar, best = by_rows(most_similar, metric[:, first], size=attention_kernels.row_block())
    if absent is not None:
        similar = jnp.where(absent[:, first], -_BELOW, similar)
    order = jnp.argsort(-similar, axis=1, stable=True).astype(jnp.int32)
    merged, unmerged = order[:, :num_merged], order[:, num_merged:]
    if num_prefix_tokens:
        unmerged = jnp.sort(unmerged, axis=1)
    return Match(unmerged, merged, best)


def merge(
    tokens: Tokens,
    pairs: Match,
    num_prefix_tokens: int,
    *,
    position: str = "mean",
    rule: str = "mean",
    has_absent: bool = True,
) -> tuple[Tokens, StepReport]:
    """Merges the pairs, by default into size-weighted means; sizes add up.

    Args:
      position: the position of a merged row: the "mean" of its rows, or that of the "kept" row of B.
      rule: what becomes of a pair, see `ToMe`.
      has_absent: whether rows may be absent (size 0).
    """
    first, second = sets(num_prefix_tokens)
    x, size = tokens.x[:, num_prefix_tokens:], tokens.size[:, num_prefix_tokens:]
    num_unmerged, num_b = pairs.unmerged.shape[1], x[:, second].shape[1]
    kept_b = jnp.broadcast_to(second.start + 2 * jnp.arange(num_b, dtype=jnp.int32)[None, :], (x.shape[0], num_b))
    kept = jnp.concatenate([first.start + 2 * pairs.unmerged, kept_b], axis=1)
    if rule == "prune":
        return keep_rows(tokens, kept, num_prefix_tokens)

    merged = jax.vmap(lambda ids: jnp.zeros(pairs.best.shape[1:], bool).at[ids].set(True))(pairs.merged)

    def one(pairs, merged):
        rank = jnp.zeros(pairs.best.shape, jnp.int32).at[pairs.unmerged].set(jnp.arange(num_unmerged, dtype=jnp.int32))
        row_map = jnp.zeros((x.shape[1],), jnp.int32)
        row_map = row_map.at[first].set(jnp.where(merged, num_unmerged + pairs.best, rank))
        return row_map.at[second].set(num_unmerged + jnp.arange(num_b, dtype=jnp.int32))

    row_map = jax.vmap(one)(pairs, merged)
    if rule == "mean" and rows_by_product.is_faster():
        reduced = rows_by_product.rows_by_product(tokens, row_map, kept, num_prefix_tokens, position=position)
        if has_absent:
            kept = _of_present(kept, row_map, tokens.size[:, num_prefix_tokens:])
        return reduced, StepReport(row_map, kept)
    # Rows are summed by a product with zeros and ones, which is exact and faster than a scatter.
    place, policy = tokens.position[:, num_prefix_tokens:], tokens.policy[:, num_prefix_tokens:]
    wide = x.astype(jnp.float32)
    weights = size[:, :, None] if rule != "tofu" else jnp.where(size > 0, 1.0, 0.0)[:, :, None]
    values = [size[:, :, None], wide * weights, place * size[:, :, None], policy[:, :, None]]
    values += [weights] if rule == "tofu" else []
    joins = lambda ids: (pairs.best[:, None, :] == ids[:, :, None]) & merged[:, None, :]

    def sums(ids, *of_b):
        inside = joins(ids)
        return [_sum(inside, values[:, first]) + of_b for values, of_b in zip(values, of_b, strict=True)]

    ids_b = jnp.broadcast_to(jnp.arange(num_b, dtype=jnp.int32)[None, :], (x.shape[0], num_b))
    of_b = [values[:, second] for values in values]
    size_b, x_b, place_b, policy_b, *weight_b = by_rows(sums, ids_b, *of_b, size=attention_kernels.row_block())
    # Two absent rows (size 0) merge into an absent row.
    counted = jnp.maximum(size_b, jnp.finfo(jnp.float32).tiny)
    x_b = x_b / jnp.maximum(weight_b[0], 1.0) if weight_b else x_b / counted
    if rule in ("mlerp", "tofu"):
        norms = jnp.where(size > 0, _norms(wide), 0.0)
        longest = lambda ids, norms_b: jnp.maximum(jnp.where(joins(ids), norms[:, None, first], 0.0).max(2), norms_b)
        largest = by_rows(longest, ids_b, norms[:, second], size=attention_kernels.row_block())
        divisor = _norms(x_b) if rule == "mlerp" else norms[:, second]
        x_b = x_b * jnp.where(divisor > 0, largest / jnp.where(divisor > 0, divisor, 1.0), 1.0)[:, :, None]
    place_b = position_by_rule(position, place_b / counted, place[:, second])
    policy_b = jnp.minimum(policy_b, 1.0)[:, :, 0]

    # Where only the row of A is present, it is the one that stays.
    number = jnp.where(size[:, first] > 0, 1 + jnp.arange(merged.shape[1], dtype=jnp.int32), 0)[:, None, :]
    present_a = by_rows(lambda ids: jnp.where(joins(ids), number, 0).max(2), ids_b, size=attention_kernels.row_block())
    kept_b = jnp.where((size[:, second] == 0) & (present_a > 0), first.start + 2 * (present_a - 1), kept_b)
    kept = jnp.concatenate([first.start + 2 * pairs.unmerged, kept_b], axis=1)

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
    return reduced, StepReport(row_map=row_map, kept=kept)


def _of_present(kept: Int[Array, "b k"], row_map: Int[Array, "b n"], size: Float[Array, "b n"]) -> Int[Array, "b k"]:
    """`kept`, but where that row of B is absent, the last row of A that is present and joins it."""
    joins = row_map[:, None, :] == jnp.arange(kept.shape[1], dtype=row_map.dtype)[None, :, None]
    number = jnp.where(size > 0, 1 + jnp.arange(size.shape[1], dtype=jnp.int32), 0)[:, None, :]
    last = jnp.where(joins, number, 0).max(2)
    return jnp.where((jnp.take_along_axis(size, kept, axis=1) == 0) & (last > 0), last - 1, kept)


def _norms(x: Float[Array, "b n d"]) -> Float[Array, "b n"]:
    squares = jnp.square(x).sum(2)
    # The gradient of a root at 0 is not finite.
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1.0)), 0.0)


def _sum(joins: Array, values: Float[Array, "b a d"]) -> Float[Array, "b k d"]:
    return jax.lax.dot_general(
        joins.astype(values.dtype), values, (((2,), (1,)), ((0,), (0,))), precision=jax.lax.Precision.HIGHEST
    )
