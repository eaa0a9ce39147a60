"""Rows that a plan drops and brings back: they wait aside with the value they had (`reduction.Plan`, `restore`)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxprune.nn.tokens import Tokens, take

RESTORES = ("zero", "last", "fuse")


def set_aside(tokens: Tokens, row_map: Int[Array, "b n"], count: int, num_prefix_tokens: int) -> Tokens:
    """The rows that a step drops, in the order in which they arrived, without the prefix.

    >>> from jaxprune.nn.tokens import all_present
    >>> tokens = all_present(jnp.arange(3.0).reshape(1, 3, 1), 0)
    >>> set_aside(tokens, jnp.array([[-1, 0, -1]]), 2, 0).x[0, :, 0].tolist()
    [0.0, 2.0]

    Args:
      tokens: the tokens that arrive at the step.
      row_map: see `reduction.StepReport`.
      count: number of rows to return, at least as many as are dropped; the others are absent.

    Returns:
      Tokens without a prefix, whose `assign` is -1 for a patch in none of them.
    """
    policy = tokens.policy[:, num_prefix_tokens:]
    leaves = (row_map < 0) & (policy > 0)
    ids = jnp.argsort(~leaves, axis=1, stable=True)[:, :count].astype(jnp.int32)
    is_present = jax.vmap(lambda leaves, ids: leaves[ids])(leaves, ids)
    of_rows = lambda values: take(values, ids, num_prefix_tokens)[:, num_prefix_tokens:]

    def holder(assign: Array, leaves: Array, ids: Array) -> Array:
        places = jnp.full(leaves.shape, -1, jnp.int32).at[ids].set(jnp.arange(ids.shape[0], dtype=jnp.int32))
        row = jnp.maximum(assign, 0)
        return jnp.where((assign >= 0) & leaves[row], places[row], -1)

    return Tokens(
        x=of_rows(tokens.x),
        size=jnp.where(is_present, of_rows(tokens.size), 0),
        policy=jnp.where(is_present, of_rows(tokens.policy), 0),
        assign=jax.vmap(holder)(tokens.assign, leaves, ids),
        position=of_rows(tokens.position),
    )


def joined(tokens: Tokens, waiting: Tokens, num_prefix_tokens: int) -> Tokens:
    """Tokens with the rows that waited behind their own."""
    rows = tokens.x.shape[1] - num_prefix_tokens
    concatenated = lambda first, second: jnp.concatenate([first, second.astype(first.dtype)], axis=1)
    behind = jnp.where(waiting.assign >= 0, waiting.assign + rows, -1)
    return Tokens(
        x=concatenated(tokens.x, waiting.x),
        size=concatenated(tokens.size, waiting.size),
        policy=concatenated(tokens.policy, waiting.policy),
        assign=jnp.where(tokens.assign >= 0, tokens.assign, behind),
        position=concatenated(tokens.position, waiting.position),
    )
