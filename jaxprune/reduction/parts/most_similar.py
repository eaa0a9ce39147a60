"""The most similar row among others, by cosine."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune.nn import kernels
from jaxprune.ops.blocks import by_rows
from jaxprune.reduction.parts.clusters import first_min


def most_similar(
    rows: Float[Array, "b m e"], targets: Float[Array, "b k e"], possible: Array | None = None
) -> tuple[Float[Array, "b m"], Int[Array, "b m"]]:
    """The largest cosine of each row with a target, in float32, and that target; ties go to the first; no gradient.

    Args:
      possible: (b, k), False for targets that no row may have.
    """
    rows, targets = (_unit(jax.lax.stop_gradient(values).astype(jnp.float32)) for values in (rows, targets))
    barred = None if possible is None else jnp.where(possible, 0, -jnp.inf)[:, None, :]

    def of_rows(rows):
        cosine = jax.lax.dot_general(rows, targets, (((2,), (2,)), ((0,), (0,))))
        cosine = cosine if barred is None else cosine + barred
        return cosine.max(2), first_min(-cosine, axis=2)

    return by_rows(of_rows, rows, size=kernels.row_block())


def _unit(values: Float[Array, "b n e"]) -> Float[Array, "b n e"]:
    length = jnp.linalg.norm(values, axis=-1, keepdims=True)
    return values / jnp.maximum(length, jnp.finfo(jnp.float32).tiny)
