"""The data that flow between the blocks of a transformer, and the reports of a block's attention."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxprune.ops.platform import platform


class Tokens(NamedTuple):
    """The tokens of a batch, and where every original patch went; all fields are always present.

    Prefix tokens (CLS, distillation, registers) come first and are never removed. "Row" below means a row after
    the prefix: row 0 is the first token that is not a prefix token.

    Attributes:
      x: the tokens.
      size: number of patches that each token holds; 0 = an absent token.
      policy: 1 = present, 0 = absent; differentiable while a method learns which tokens to keep.
      assign: the row that holds each ORIGINAL patch; -1 = dropped.
      position: the coordinates of each token on the grid, not necessarily whole; zero for the prefix.
    """

    x: Float[Array, "b n d"]
    size: Float[Array, "b n"]
    policy: Float[Array, "b n"]
    assign: Int[Array, "b p"]
    position: Float[Array, "b n c"]


class Attended(NamedTuple):
    """Reports of one attention layer; only the requested fields are set.

    Attributes:
      cls_attn: the attention that methods rank tokens by, after the softmax: that of the CLS token, the first one, to
        every token; in a network without a CLS token, the mean of what all tokens pay to each.
      received: attention received by each key, summed over the queries.
      keys: the keys.
      values: the values.
      scores: the scorer's output for each row, under a plan with a scorer if rows cannot be removed (`Site.removable`).
      normed: the tokens that enter the layer, normalised (`Block.normed`).
      entered: the tokens that enter the layer in front of the reducer: the block's attention, or other mixing, for a
        reducer between that and its MLP; the MLP for one after it.
    """

    cls_attn: Float[Array, "b h n"] | None = None
    received: Float[Array, "b h n"] | None = None
    keys: Float[Array, "b h n d"] | None = None
    values: Float[Array, "b h n d"] | None = None
    scores: Float[Array, "b r"] | None = None
    normed: Float[Array, "b n d"] | None = None
    entered: Float[Array, "b n d"] | None = None


# The fields that are there without attention.
WITHOUT_ATTENTION = frozenset({"entered"})


NOTHING = Attended()


def coordinates(grid: tuple[int, ...]) -> Float[np.ndarray, "p c"]:
    """The coordinates of every patch of a grid in raster order, from 0: (row, column), or (frame, row, column)."""
    return np.stack(np.unravel_index(np.arange(math.prod(grid)), grid), axis=1).astype(np.float32)


def all_present(
    x: Float[Array, "b n d"], num_prefix_tokens: int, position: Float[Array, "_ p c"] | None = None
) -> Tokens:
    """Wraps freshly embedded tokens: every patch is present, in its own row.

    Args:
      position: position of each patch, one table for all images (1, p, c) or one for each (b, p, c); by default its
        index.
    """
    b, n, _ = x.shape
    p = n - num_prefix_tokens
    if position is None:
        position = jnp.asarray(coordinates((p,)))[None]
    return Tokens(
        x=x,
        size=jnp.ones((b, n), jnp.float32),
        policy=jnp.ones((b, n), jnp.float32),
        assign=jnp.broadcast_to(jnp.arange(p, dtype=jnp.int32)[None, :], (b, p)),
        position=jnp.broadcast_to(
            jnp.pad(position, ((0, 0), (num_prefix_tokens, 0), (0, 0))), (b, n, position.shape[2])
        ),
    )


def log_sizes(size: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The log of tokens' sizes, with a finite gradient too: absent tokens, of size 0, are masked elsewhere."""
    return jnp.log(jnp.maximum(size, jnp.finfo(jnp.float32).tiny))


def take(values: Array, ids: Int[Array, "b k"], num_prefix_tokens: int) -> Array:
    """Takes rows `ids` (after the prefix) of `values` (b, n, …), with the prefix in front; row 0 for an id of -1."""
    if platform() == "cpu":
        prefix, rows = values[:, :num_prefix_tokens], values[:, num_prefix_tokens:]
        return jnp.concatenate([prefix, jax.vmap(lambda r, i: r[i])(rows, jnp.maximum(ids, 0))], axis=1)
    # The prefix in the same gather: by the compiler's estimate for a TPU v5e half the cycles, and on a CPU 2.5 times
    # the time.
    prefix = jnp.broadcast_to(jnp.arange(num_prefix_tokens, dtype=ids.dtype)[None], (len(ids), num_prefix_tokens))
    rows = jnp.concatenate([prefix, num_prefix_tokens + jnp.maximum(ids, 0)], axis=1)
    return jax.vmap(lambda r, i: r[i])(values, rows)


def on_map(x: Float[Array, "b n d"], grid: tuple[int, ...]) -> Tokens:
    """Returns the tokens of a whole map, in raster order, without prefix."""
    return all_present(x, 0, jnp.asarray(coordinates(grid))[None])
