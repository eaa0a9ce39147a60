"""Grad-CAM++: Grad-CAM whose gradients are weighted place by place (Chattopadhay et al., 2018)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.scoring.grad_cam import GradCAM


class GradCAMPlusPlus(GradCAM):
    """`ReLU(Σ_c w_c A_c)` with `w_c = Σ α_c ReLU(g_c)`, for the gradient g of the predicted class's logit S by A.

    With `exp S` as the class score, Eq. 19 becomes `α = g² / (2 g² + g³ Σ A)`, the sum being over the channel's places;
    where g is 0, so is α. The factor `exp S` of all weights is left out, since the map is rescaled.

    Args:
      via_input_size: see `GradCAM`.
    """

    def weights(self, maps: Float[Array, "b *map c"], gradient: Float[Array, "b *map c"]) -> Float[Array, "b c"]:
        places = tuple(range(1, maps.ndim - 1))
        # Divided by g², which may be too small for float32.
        divisor = 2 + gradient * maps.sum(places, keepdims=True)
        share = jnp.where((gradient == 0) | (divisor == 0), 0, 1 / jnp.where(divisor == 0, 1, divisor))
        return (share * jnp.maximum(gradient, 0)).sum(places)
