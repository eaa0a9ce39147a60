"""What flows between the blocks of a transformer, and what a block can report about its attention."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


class Tokens(NamedTuple):
    """The tokens of a batch and where every original patch went; every field is always there.

    Prefix tokens (CLS, distillation, registers) come first and are never removed. "Row" below means a row behind
    the prefix: row 0 is the first token that is not a prefix token.

    Attributes:
      x: the tokens.
      size: how many patches each token stands for; 0 = an absent token.
      policy: 1 = present, 0 = absent; differentiable while a method learns whom to keep.
      assign: for each ORIGINAL patch the row that holds it; -1 = dropped.
      position: where each token is, as its network needs it: coordinates on the grid, or rotary sines and cosines.
        Zero for the prefix.
    """

    x: Float[Array, "b n d"]
    size: Float[Array, "b n"]
    policy: Float[Array, "b n"]
    assign: Int[Array, "b p"]
    position: Float[Array, "b n c"]


class Attended(NamedTuple):
    """What one attention layer saw; only the fields that were asked for are filled.

    Attributes:
      cls_attn: attention of the CLS token to every token, after the softmax. Without any prefix token: the mean
        attention that each token received.
      received: attention received by each key, summed over the queries.
      keys: the keys.
      values: the values.
      scores: the scorer's output for each row, under a plan with one where rows cannot leave (`Site.leaves`).
    """

    cls_attn: Float[Array, "b h n"] | None = None
    received: Float[Array, "b h n"] | None = None
    keys: Float[Array, "b h n d"] | None = None
    values: Float[Array, "b h n d"] | None = None
    scores: Float[Array, "b r"] | None = None


NOTHING = Attended()


def coordinates(grid: tuple[int, ...]) -> Float[np.ndarray, "p c"]:
    """The place of every patch of a grid in raster order, in patches from 0: (row, column), or (frame, row, column)."""
    return np.stack(np.unravel_index(np.arange(math.prod(grid)), grid), axis=1).astype(np.float32)


def all_present(
    x: Float[Array, "b n d"], num_prefix_tokens: int, position: Float[Array, "_ p c"] | None = None
) -> Tokens:
    """Wraps freshly embedded tokens: every patch is there, in a row of its own.

    Args:
      position: of each patch, one table for all images (1, p, c) or one for each (b, p, c); by default its number.
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


def take(values: Array, ids: Int[Array, "b k"], num_prefix_tokens: int) -> Array:
    """Takes rows `ids` (behind the prefix) of `values` (b, n, …), the prefix in front; row 0 for an id of -1."""
    prefix, rows = values[:, :num_prefix_tokens], values[:, num_prefix_tokens:]
    return jnp.concatenate([prefix, jax.vmap(lambda r, i: r[i])(rows, jnp.maximum(ids, 0))], axis=1)
