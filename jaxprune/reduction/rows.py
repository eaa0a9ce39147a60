"""Keeping rows of `Tokens`, with the account of where every patch went."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune.nn.tokens import Attended, Tokens, take
from jaxprune.reduction.base import Aux


def compose(assign: Int[Array, "b p"], row_map: Int[Array, "b n"]) -> Int[Array, "b p"]:
    """Follows every patch through one more stage; dropped patches (-1) stay dropped."""

    def one(assign, row_map):
        return jnp.where(assign < 0, -1, row_map[jnp.maximum(assign, 0)])

    return jax.vmap(one)(assign, row_map)


def places(ids: Int[Array, "b k"], num_rows: int, others: int = -1) -> Int[Array, "b n"]:
    """For each of `num_rows` rows its place in `ids`; `others` for rows that are not among them."""

    def one(ids):
        return jnp.full((num_rows,), others, jnp.int32).at[ids].set(jnp.arange(ids.shape[0], dtype=jnp.int32))

    return jax.vmap(one)(ids)


def keep_rows(tokens: Tokens, ids: Int[Array, "b k"], num_prefix_tokens: int) -> tuple[Tokens, Aux]:
    """Keeps the rows `ids`, in that order, and drops the others."""
    row_map = places(ids, tokens.x.shape[1] - num_prefix_tokens)
    kept = Tokens(
        x=take(tokens.x, ids, num_prefix_tokens),
        size=None if tokens.size is None else take(tokens.size, ids, num_prefix_tokens),
        policy=None if tokens.policy is None else take(tokens.policy, ids, num_prefix_tokens),
        assign=None if tokens.assign is None else compose(tokens.assign, row_map),
    )
    return kept, Aux(row_map=row_map, kept=ids.astype(jnp.int32))


def best(scores: Float[Array, "b n"], num_keep: int) -> Int[Array, "b k"]:
    """Indices of the largest scores, best first; of equal scores the first index wins.

    A stable sort, not `lax.top_k`: on a sharded batch `top_k` gathers all images on every device.
    """
    return jnp.argsort(-scores, axis=-1, stable=True)[:, :num_keep].astype(jnp.int32)


def cls_scores(attended: Attended, num_prefix_tokens: int) -> Float[Array, "b n"]:
    """Attention of the CLS token to each row, averaged over the heads."""
    return attended.cls_attn.mean(1)[:, num_prefix_tokens:]
