"""The loss of networks with several exits."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def exit_losses(logits: Float[Array, "m b c"], targets: Float[Array, "b c"]) -> Float[Array, "m"]:
    """Returns the cross-entropy of each exit with soft targets, a mean over the batch, in float32.

    Networks whose exits are trained jointly with equal weights minimise the sum (DVT, Wang et al., 2021).

    >>> exit_losses(jnp.zeros((3, 1, 2)), jnp.array([[0.5, 0.5]])).round(3).tolist()
    [0.6930000185966492, 0.6930000185966492, 0.6930000185966492]
    """
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    return -(targets.astype(jnp.float32)[None] * log_probabilities).sum(-1).mean(1)
