"""MCTF: merge tokens that are alike, receive little attention and hold few patches (Lee et al., 2024)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxprune.errors import UserError, unknown
from jaxprune.nn import attention_kernels
from jaxprune.nn.block_cost import Where
from jaxprune.ops.blocks import by_rows
from jaxprune.reduction.parts import clusters
from jaxprune.reduction.parts.base import Step
from jaxprune.reduction.parts.cosines import products, unit
from jaxprune.reduction.parts.keep_rows import absent_rows, present, unchanged
from jaxprune.reduction.parts.pair_merging import PairMerger, alternating
from jaxprune.reduction.parts.row_maps import places
from jaxprune.reduction.tome import sets

PLACES: dict[int, Where] = {0: "behind", 1: "ahead", 2: "anew"}
POOLS = ("attention", "size")
# Scores of rows that nothing merges into unless there is no other: an absent row, and one that leaves itself.
_ABSENT, _LEAVES = -1.0, -2.0


def fuse(
    x: Float[Array, "b n d"],
    factors: Float[Array, "b n"],
    num_merged: int,
    num_prefix_tokens: int,
    *,
    tau_sim: float = 1.0,
    bidirectional: bool = True,
    absent: Bool[Array, "b n"] | None = None,
) -> tuple[Int[Array, "b k"], Int[Array, "b n"]]:
    """Chooses the rows that merge by ((1 + cosine) / 2) ** (1 / tau_sim) times the factors of both; without gradient.

    Rows alternate between A (even positions, counting the prefix) and B. Half of the rows that leave are of A and merge
    into B; the others are of B, with all that they hold by then, and merge into the rest of A.

    Args:
      x: the rows without the prefix.
      factors: a factor per row, by its attention and its size.
      num_merged: number of rows that leave.
      bidirectional: False takes all of them from A.
      absent: True for rows that hold nothing: they leave first, and none merges into them.

    Returns:
      (kept, row_map): for each outgoing row, the incoming row that the others merged into: the rest of A in rising
      order, then that of B by falling score (in rising order if not bidirectional); and for each incoming row, the
      outgoing row that holds it.
    """
    vectors, factors = unit(x), jax.lax.stop_gradient(factors)
    first, second = sets(num_prefix_tokens)
    from_a = num_merged // 2 if bidirectional else num_merged
    from_b = num_merged - from_a

    def highest(side, candidates, leaves=None):
        def of_rows(rows, row_factors):
            similarity = jnp.maximum((1 + products(rows, vectors[:, candidates])) / 2, 0) ** (1 / tau_sim)
            scores = similarity * row_factors[:, :, None] * factors[:, None, candidates]
            scores = scores if absent is None else jnp.where(absent[:, None, candidates], _ABSENT, scores)
            scores = scores if leaves is None else jnp.where(leaves[:, None, :], _LEAVES, scores)
            return scores.max(2), clusters.first_min(-scores, axis=2)

        scores, best = by_rows(of_rows, vectors[:, side], factors[:, side], size=attention_kernels.row_block())
        return scores if absent is None else jnp.where(absent[:, side], jnp.inf, scores), best

    scores, best_b = highest(first, second)
    order_a = jnp.argsort(-scores, axis=1, stable=True).astype(jnp.int32)
    leaves_a, rest_a = places(order_a[:, :from_a], scores.shape[1]) >= 0, jnp.sort(order_a[:, from_a:], axis=1)
    num_b = x.shape[1] - scores.shape[1]
    rest_b = jnp.broadcast_to(jnp.arange(num_b, dtype=jnp.int32)[None], (x.shape[0], num_b))
    target_a = jnp.where(leaves_a, second.start + 2 * best_b, _rows_of(first, leaves_a))
    target_b = second.start + 2 * rest_b
    if from_b:
        # The second choice is by the same scores, although rows of B may have grown.
        scores, best_a = highest(second, first, leaves_a)
        order_b = jnp.argsort(-scores, axis=1, stable=True).astype(jnp.int32)
        leaves_b, rest_b = places(order_b[:, :from_b], num_b) >= 0, order_b[:, from_b:]
        target_b = jnp.where(leaves_b, first.start + 2 * best_a, target_b)
    target = alternating(*((target_a, target_b) if first.start == 0 else (target_b, target_a)))
    kept = jnp.concatenate([first.start + 2 * rest_a, second.start + 2 * rest_b], axis=1)
    follow = jax.vmap(lambda target, numbers: numbers[target[target]])
    return kept, follow(target, places(kept, x.shape[1]))


def _rows_of(side: slice, like: Array) -> Int[Array, "b a"]:
    """The numbers of the rows of A or B, for every image."""
    rows = side.start + 2 * jnp.arange(like.shape[1], dtype=jnp.int32)
    return jnp.broadcast_to(rows[None], like.shape)


class MCTF(PairMerger):
    """Merges rows by their similarity, the attention they receive and their size, and averages them by the latter two.

    A pair has the score ((1 + cosine) / 2)^(1 / tau_sim) · (i_a i_b)^(1 / tau_info) · (z_a z_b)^(1 / tau_size), where i
    is the reciprocal of the attention that a row receives, z that of its size, and the cosine is that of the rows
    themselves. At most half of the tokens can merge: where a plan asks for fewer rows than that leaves, `num_tokens` is
    the true count. Outgoing rows are in the order of `fuse`; `kept` lists the rows that others merged into.

    >>> from jaxprune.reduction import Plan
    >>> Plan("mctf", keep_rate=0.7, reduction_loc=(3, 6), look_ahead=0).text
    'mctf@3:keep_rate=0.7,look_ahead=0+mctf@6:keep_rate=0.48999999999999994,look_ahead=0'

    Args:
      look_ahead: where rows merge. 0: behind the block whose attention is read. 1, as published: before it; its
        attention, computed for the incoming rows, is summed and averaged for the merged ones, whose values are new. 2:
        before it, and attention is computed anew.
      tau_sim, tau_info, tau_size: temperatures of the score.
      bidirectional: half of the rows that leave are of set B, see `fuse`; False takes all of A.
      pool: the weights of means: "attention", received, times size; or "size" alone.
      proportional: whether attention weighs keys by size from here on.

    Raises:
      UserError: there is no such option, or a temperature is not positive.
    """

    where = "ahead"
    needs = frozenset({"received"})

    def __init__(
        self,
        step: Step,
        *,
        look_ahead: int = 1,
        tau_sim: float = 1.0,
        tau_info: float = 20.0,
        tau_size: float = 40.0,
        bidirectional: bool = True,
        pool: str = "attention",
        proportional: bool = True,
        rngs: Any = None,
    ):
        super().__init__(step)
        if look_ahead not in PLACES:
            raise UserError(f"look_ahead={look_ahead} of mctf is none of {', '.join(map(str, PLACES))}: use 1.")
        if pool not in POOLS:
            raise unknown("pool", pool, POOLS)
        for name, tau in {"tau_sim": tau_sim, "tau_info": tau_info, "tau_size": tau_size}.items():
            if not tau > 0:
                raise UserError(f"{name}={tau} of mctf is not positive: use one such as 20.")
        self.tau_sim, self.tau_info, self.tau_size = tau_sim, tau_info, tau_size
        self.bidirectional, self.pool, self.proportional = bidirectional, pool, proportional
        # Where nothing merges, the block stays as it is.
        self.where = PLACES[look_ahead] if self.num_merged() else "after"

    def flops(self) -> int:
        """Similarities of A and B, once per direction, and k·n·d for means, besides what look-ahead adds to a block.

        With `look_ahead` 1 that is k·d² for the values of merged rows and k·n·d for the means of what rows gather, with
        2 the projections and logits of the attention that is read, 3·n·d² + n²·d.
        """
        n, k, d, prefix = self.step.tokens_in, self.num_tokens(), self.step.embed_dim, self.step.num_prefix_tokens
        if n == k:
            return 0
        products = (1 + self.bidirectional) * (n // 2) * (n - n // 2) * d + k * n * d
        if not self.step.removable:
            return products
        ahead = (prefix + k) * d * d + k * n * d
        anew = 3 * (prefix + n) * d * d + (prefix + n) ** 2 * d
        return products + {"ahead": ahead, "anew": anew}.get(self.where, 0)

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, sizes = self.step.num_prefix_tokens, tokens.size[:, self.step.num_prefix_tokens :]
        if self.num_merged() == 0:
            return unchanged(tokens, prefix)
        received = present(attended.received).astype(jnp.float32).mean(1)[:, prefix:]
        kept, row_map = fuse(
            tokens.x[:, prefix:],
            self._factors(received, sizes),
            self.num_merged(),
            prefix,
            tau_sim=self.tau_sim,
            bidirectional=self.bidirectional,
            absent=absent_rows(tokens, self.step),
        )
        weights = sizes * received if self.pool == "attention" else sizes
        rows = clusters.weighted_means(tokens.x[:, prefix:], weights, row_map, self.num_tokens())
        reduced, report = clusters.clustered(tokens, rows, row_map, kept, self.step)
        return reduced, report._replace(extra={"weights": weights})

    def _factors(self, received: Float[Array, "b n"], sizes: Float[Array, "b n"]) -> Float[Array, "b n"]:
        """The part of a row in the scores of its pairs, relative to the largest of the image."""
        is_present = sizes > 0
        lowest = lambda values: jnp.where(is_present, values, jnp.inf).min(1, keepdims=True)
        share = lambda values: jnp.where(is_present, lowest(values) / jnp.where(is_present, values, 1.0), 1.0)
        factors = share(received) ** (1 / self.tau_info) * share(sizes) ** (1 / self.tau_size)
        return factors

    def average(self, gathered, report):
        prefix = self.step.num_prefix_tokens
        assert report.extra is not None, "the report is not of this method"
        weights = report.extra["weights"]
        rows = clusters.weighted_means(gathered[:, prefix:], weights, report.row_map, self.num_tokens())
        return jnp.concatenate([gathered[:, :prefix], rows.astype(gathered.dtype)], axis=1)
