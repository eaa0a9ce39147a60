"""Where rows go: maps from incoming to outgoing rows, and from patches to rows."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


def compose(assign: Int[Array, "b p"], row_map: Int[Array, "b n"]) -> Int[Array, "b p"]:
    """Follows every patch through one more step; dropped patches (-1) stay dropped."""

    def one(assign, row_map):
        return jnp.where(assign < 0, -1, row_map[jnp.maximum(assign, 0)])

    return jax.vmap(one)(assign, row_map)


def places(ids: Int[Array, "b k"], num_tokens: int, default: int = -1) -> Int[Array, "b n"]:
    """The index in `ids` of each of `num_tokens` tokens; `default` for tokens that are not in `ids`."""

    def one(ids):
        return jnp.full((num_tokens,), default, jnp.int32).at[ids].set(jnp.arange(ids.shape[0], dtype=jnp.int32))

    return jax.vmap(one)(ids)
