"""Weighted sums of rows by a TPU's matrix unit."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

FEWEST_ROWS = 8  # of a product on a TPU's matrix unit: with fewer it is a sum beside it


def sum_of_rows(x: Float[Array, "*b n d"], weights: Float[Array, "*b n"]) -> Float[Array, "*b d"]:
    """The sum of the rows times their weights, in float32, as a matrix product.

    >>> sum_of_rows(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1.0, 0.5])).tolist()
    [2.5, 4.0]

    Args:
      weights: rounded to the dtype of `x`.
    """
    shape = (*weights.shape[:-1], FEWEST_ROWS, weights.shape[-1])
    equal = jnp.broadcast_to(weights.astype(x.dtype)[..., None, :], shape)
    product = jnp.matmul(equal, x, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)
    return product[..., 0, :]
