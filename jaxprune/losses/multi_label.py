"""The asymmetric loss (ASL) of images with several labels."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def asymmetric_loss(
    logits: Float[Array, "b c"],
    labels: Float[Array, "b c"],
    *,
    gamma_negative: float = 4.0,
    gamma_positive: float = 0.0,
    clip: float = 0.05,
    eps: float = 1e-8,
) -> Float[Array, "b"]:
    """Multi-label cross-entropy that down-weights easy negatives (ASL, Ridnik et al., 2021), one value per image.

    Classes are summed. The published recipe also sums over the batch; its gradient passes through the focusing weight.

    Args:
      labels: 1 for classes present in the image, else 0.
      clip: added to the probability of absence, which is capped at 1.
    """
    present = jax.nn.sigmoid(logits.astype(jnp.float32))
    absent = jnp.minimum(1.0 - present + clip, 1.0)
    log = labels * jnp.log(jnp.maximum(present, eps)) + (1 - labels) * jnp.log(jnp.maximum(absent, eps))
    right = labels * present + (1 - labels) * absent
    focus = (1.0 - right) ** (labels * gamma_positive + (1 - labels) * gamma_negative)
    return -(focus * log).sum(-1)
