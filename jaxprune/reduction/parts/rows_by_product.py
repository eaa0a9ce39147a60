"""Rows that are merged, kept and moved by one matrix product, as TPUs compute them fastest."""

import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array, Float, Int

from jaxprune.nn import attention_kernels
from jaxprune.nn.tokens import Tokens, take
from jaxprune.ops.platform import platform
from jaxprune.reduction.parts.merged_position import position_by_rule
from jaxprune.reduction.parts.row_maps import compose


def is_faster() -> bool:
    """Whether `rows_by_product` is the form to take: on TPUs, where the matrix of all pairs may be held."""
    return platform() == "tpu" and attention_kernels.row_block() is None


def rows_by_product(
    tokens: Tokens,
    row_map: Int[Array, "b n"],
    kept: Int[Array, "b k"],
    num_prefix_tokens: int,
    *,
    position: str = "mean",
    shares: Float[Array, "b n"] | None = None,
) -> Tokens:
    """Returns sums of the rows that go to each outgoing row, by default their size-weighted means; sizes add up.

    One product with the shares of all rows in place of slices, gathers and sums, each of which copies rows: on a TPU
    those behind a prefix are not aligned with the tiles of its memory. A row that no other joins keeps its value.

    Args:
      row_map: for each incoming row behind the prefix, the outgoing row that holds it; -1 = dropped.
      kept: for each outgoing row, the incoming one whose position it has by the rule "kept".
      position: see `At.position`.
      shares: the factor of each incoming row behind the prefix, in place of its share of the size.
    """
    prefix, num_rows = num_prefix_tokens, num_prefix_tokens + kept.shape[1]
    rows_of_prefix = jnp.broadcast_to(jnp.arange(prefix, dtype=row_map.dtype)[None, :], (row_map.shape[0], prefix))
    places = jnp.concatenate([rows_of_prefix, jnp.where(row_map < 0, -1, prefix + row_map)], axis=1)
    joins = places[:, None, :] == jnp.arange(num_rows, dtype=places.dtype)[None, :, None]
    columns = [tokens.size[:, :, None], tokens.policy[:, :, None], tokens.position * tokens.size[:, :, None]]
    sums = jnp.matmul(joins.astype(jnp.float32), jnp.concatenate(columns, axis=2), precision=Precision.HIGHEST)
    size = sums[:, :, 0]
    counted = jnp.maximum(size, jnp.finfo(jnp.float32).tiny)[:, :, None]
    if shares is None:
        factors = tokens.size[:, None, :] / counted
    else:
        factors = jnp.pad(shares, ((0, 0), (prefix, 0)), constant_values=1.0)[:, None, :]
    # Three terms of half the precision have as many digits as the result.
    enough = Precision.HIGHEST if tokens.x.dtype == jnp.float32 else Precision.HIGH
    x = jnp.matmul(jnp.where(joins, factors, 0.0), tokens.x.astype(jnp.float32), precision=enough)
    of_kept = take(tokens.position, kept, prefix) if position == "kept" else None
    return Tokens(
        x=x.astype(tokens.x.dtype),
        size=size,
        policy=jnp.minimum(sums[:, :, 1], 1.0),
        assign=compose(tokens.assign, row_map),
        position=position_by_rule(position, sums[:, :, 2:] / counted, of_kept),
    )
