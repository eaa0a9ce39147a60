"""ALGM: merge similar windows of patches first, similar tokens of the whole image later (Norouzi et al., 2024)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.nn.tokens import Tokens
from jaxprune.reduction import tome
from jaxprune.reduction.parts import clusters, cosines
from jaxprune.reduction.parts.base import Reducer, Step
from jaxprune.reduction.parts.keep_rows import absent_rows, best, unchanged
from jaxprune.reduction.parts.row_maps import places
from jaxprune.reduction.parts.step_sizes import Rate, whole

WINDOW = 2


class ALGM(Reducer):
    """Merges whole windows of the map at the first step of a plan, and pairs of tokens at later steps.

    At the first step, windows are ranked by the mean cosine between their rows, and the most similar become one row
    each; outgoing rows are the merged windows, the most similar first, then the other rows in their order. Patches at
    the edge of a map that is not a whole number of windows do not merge. A step leaves as many rows as the plan asks
    for, or up to window² - 2 more, since windows merge as a whole; see `num_tokens`.

    At later steps the pairs are those of ToMe, by the cosine of the rows themselves, not of their keys; at most half of
    the rows merge. Where rows cannot be removed, every step has the whole map and merges windows.

    Rows are size-weighted means; later blocks do not weigh them by size, as in the published code, which merges a
    different number of rows in each batch (see `num_over`).

    Args:
      window: side of a window, in patches.
    """

    where = "after"
    drops = False

    @classmethod
    def check(cls, plan: Any) -> None:
        least, before = [], 1.0
        for index, at in enumerate(plan.steps):
            window = dict(at.options).get("window", WINDOW) if at.reducer_class is cls else WINDOW
            if whole("window", window) < 2:
                raise UserError(f"window={window} holds no two patches that could merge: use 2 or more.")
            if not isinstance(at.amount, Rate):
                return  # `num_tokens` is the true count
            share = before / 2 if index else _rounded_up(1 / window**2)
            if at.reducer_class is cls and at.amount.rate < share - 1e-9:
                if plan.method is None:
                    remedy: Any = share
                elif isinstance(plan.keep_rate, tuple):
                    remedy = (*least, *_raised(plan.keep_rate[index:], share))
                else:
                    remedy = 0.5 if len(plan.steps) > 1 else share
                rate = plan.keep_rate if plan.method else at.amount.rate
                raise UserError(
                    f"keep_rate {rate} is too low for algm, which keeps at least one row of every window at the first "
                    f"step, and half of the rows at later ones: use {remedy}."
                )
            before = at.amount.rate
            least.append(before)

    def __init__(self, step: Step, *, window: int = WINDOW, rngs: nnx.Rngs | None = None):
        super().__init__(step)
        sides = step.grid[-2:]
        if not 2 <= whole("window", window) <= min(sides):
            raise UserError(f"window={window} does not fit a map of {sides} patches: use 2 to {min(sides)}.")
        self.window = window
        self.in_windows = not step.removable or (step.index == 0 and step.tokens_in == math.prod(step.grid))

    def num_merged(self) -> int:
        """Number of merged windows, or of merged pairs at a later step."""
        leaving = self.step.tokens_in - self.step.num_keep
        if not self.in_windows:
            return min(leaving, self.step.tokens_in // 2)
        rows, columns = (side // self.window for side in self.step.grid[-2:])
        return min(leaving // (self.window**2 - 1), math.prod(self.step.grid[:-2]) * rows * columns)

    def num_tokens(self) -> int:
        return self.step.tokens_in - self.num_merged() * (self.window**2 - 1 if self.in_windows else 1)

    def num_planned(self) -> int:
        return self.step.num_keep

    def flops(self) -> int:
        """n·d for the cosines in the windows and n·d for means; or the products of pairs and sums, as in ToMe."""
        n, d = self.step.tokens_in, self.step.embed_dim
        return 2 * n * d if self.in_windows else 2 * (n // 2) * (n - n // 2) * d

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, num_merged = self.step.num_prefix_tokens, self.num_merged()
        if num_merged == 0:
            return unchanged(tokens, prefix)
        x = tokens.x[:, prefix:].astype(jnp.float32)
        if not self.in_windows:
            pairs = tome.match(x, num_merged, prefix, absent_rows(tokens, self.step))
            return tome.merge(tokens, pairs, prefix, position=self.step.position, has_absent=self.step.has_absent)
        similar = best(window_similarity(x, self.step.grid, self.window), num_merged)
        return self._merge(tokens, jnp.asarray(windows_of(self.step.grid, self.window))[similar])

    def _merge(self, tokens: Tokens, merged: Int[Array, "b m w"]) -> tuple:
        """Merges groups of rows, and puts the others behind them."""
        prefix = self.step.num_prefix_tokens
        n = tokens.x.shape[1] - prefix
        (num_merged, window), inside = merged.shape[1:], merged.reshape(merged.shape[0], -1)
        num_single = n - inside.shape[1]
        single = jnp.argsort(places(inside, n) >= 0, axis=1, stable=True)[:, :num_single].astype(jnp.int32)
        to = np.concatenate([np.repeat(np.arange(num_merged), window), num_merged + np.arange(num_single)])
        row_map = jax.vmap(lambda ids: jnp.zeros((n,), jnp.int32).at[ids].set(to))(
            jnp.concatenate([inside, single], axis=1)
        )
        x, size = tokens.x[:, prefix:], tokens.size[:, prefix:]
        of = jax.vmap(lambda values, ids: values[ids])
        weights = of(size, merged)[..., None]
        means = (of(x, merged).astype(jnp.float32) * weights).sum(2) / weights.sum(2)
        rows = jnp.concatenate([means.astype(x.dtype), of(x, single)], axis=1)
        centres = jnp.concatenate([merged[:, :, 0], single], axis=1)
        return clusters.clustered(tokens, rows, row_map, centres, self.step)


def windows_of(grid: tuple[int, ...], window: int) -> Int[np.ndarray, "m w"]:
    """The patches of every window, in raster order; on a grid of a clip, windows lie within a frame.

    >>> windows_of((2, 5), 2).tolist()
    [[0, 1, 5, 6], [2, 3, 7, 8]]
    """
    height, width = grid[-2:]
    rows, columns = height // window, width // window
    ids = np.arange(math.prod(grid), dtype=np.int32).reshape(-1, height, width)
    cut = ids[:, : rows * window, : columns * window].reshape(-1, rows, window, columns, window)
    return cut.transpose(0, 1, 3, 2, 4).reshape(-1, window**2)


def window_similarity(x: Float[Array, "b n d"], grid: tuple[int, ...], window: int) -> Float[Array, "b m"]:
    """The mean cosine between different rows of each window, without gradient.

    Args:
      x: the rows of a whole grid, in raster order.
    """
    count = window**2
    sums = cosines.unit(x)[:, windows_of(grid, window)].sum(2)
    # The squared norm of the sum is the sum of all cosines, including those of each row with itself.
    return (jnp.square(sums).sum(-1) - count) / (count * (count - 1))


def num_over(x: Float[Array, "b n d"], layer: int, num_prefix_tokens: int) -> Int[Array, "b"]:
    """How many pairs of each image are above the published threshold of a later step; the code merges the smallest.

    The threshold is the mean of the best similarities of an image, plus their standard deviation (unbiased) divided by
    the number of the block, averaged over the batch.

    Args:
      x: the rows, with the prefix.
      layer: number of the block, from 1.
    """
    first, second = (cosines.unit(x[:, num_prefix_tokens:])[:, rows] for rows in tome.sets(num_prefix_tokens))
    similar = cosines.products(first, second).max(2)
    threshold = (similar.mean(1) + similar.std(1, ddof=1) / layer).mean()
    return (similar >= threshold).sum(1, dtype=jnp.int32)


def _rounded_up(share: float) -> float:
    return math.ceil(share * 1e4 - 1e-9) / 1e4


def _raised(rates: tuple[float, ...], least: float) -> tuple[float, ...]:
    """The rates, raised where one is below what the step before can leave."""
    raised = []
    for rate in rates:
        raised.append(max(rate, least))
        least = raised[-1] / 2
    return tuple(raised)
