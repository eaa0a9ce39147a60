"""The loss of networks with several exits."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxprune.losses.distillation import kl_distillation


def exit_losses(logits: Float[Array, "m b c"], targets: Float[Array, "b c"]) -> Float[Array, "m"]:
    """Returns the cross-entropy of each exit with soft targets, a mean over the batch, in float32.

    Networks whose exits are trained jointly with equal weights minimise the sum (DVT, Wang et al., 2021).

    >>> exit_losses(jnp.zeros((3, 1, 2)), jnp.array([[0.5, 0.5]])).round(3).tolist()
    [0.6930000185966492, 0.6930000185966492, 0.6930000185966492]
    """
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    return -(targets.astype(jnp.float32)[None] * log_probabilities).sum(-1).mean(1)


def distilled_exit_loss(
    logits: Float[Array, "m b c"],
    targets: Float[Array, "b c"],
    weights: tuple[float, ...] = (0.5, 0.5, 1.0, 1.0),
    distillation: float = 0.5,
) -> Float[Array, ""]:
    """Returns weighted cross-entropies of the exits, plus KL divergences of the others from the last one.

    The last exit is a fixed teacher of the others. The defaults are those of Dynamic Perceiver's code (Han et al.,
    2023).

    Args:
      logits: of all exits, the first exit first.
      weights: of the exits' cross-entropies.
      distillation: weight of the sum of the divergences.
    """
    teacher = jax.lax.stop_gradient(logits[-1])
    divergences = sum((kl_distillation(student, teacher) for student in logits[:-1]), jnp.zeros(()))
    return (jnp.asarray(weights) * exit_losses(logits, targets)).sum() + distillation * divergences
