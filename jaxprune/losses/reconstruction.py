"""The loss of masked autoencoders."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Shaped


def masked_mse(
    pred: Float[Array, "b p q"], target: Float[Array, "b p q"], masked: Shaped[Array, "b p"]
) -> Float[Array, ""]:
    """Averages the squared error over the masked patches of the whole batch (MAE).

    The error is averaged over each patch, then weighted by `masked` (bool, or weights) and divided by the sum of the
    weights; computed in float32.
    """
    weight = masked.astype(jnp.float32)
    error = jnp.square(pred.astype(jnp.float32) - target.astype(jnp.float32)).mean(-1)
    return (error * weight).sum() / weight.sum()
