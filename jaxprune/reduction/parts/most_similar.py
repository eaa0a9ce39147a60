"""The most similar row among others, by cosine."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxprune.nn import attention_kernels
from jaxprune.ops.blocks import by_rows
from jaxprune.reduction.parts.clusters import first_min
from jaxprune.reduction.parts.cosines import products, unit


def most_similar(
    rows: Float[Array, "b m e"], targets: Float[Array, "b k e"], possible: Bool[Array, "b k"] | None = None
) -> tuple[Float[Array, "b m"], Int[Array, "b m"]]:
    """The largest cosine of each row with a target, in float32, and that target; ties go to the first; no gradient.

    Args:
      possible: False for targets that no row may have.
    """
    targets = unit(targets)
    barred = None if possible is None else jnp.where(possible, 0, -jnp.inf)[:, None, :]

    def of_rows(rows):
        cosine = products(rows, targets)
        cosine = cosine if barred is None else cosine + barred
        return cosine.max(2), first_min(-cosine, axis=2)

    return by_rows(of_rows, unit(rows), size=attention_kernels.row_block())
