"""LIFT-CAM: feature maps weighted by their contributions to the predicted class's logit (Jung and Oh, 2021)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.scoring.parts.base import Scorer
from jaxprune.scoring.parts.maps import activation
from jaxprune.scoring.parts.networks import class_rows, feature_map


class LiftCAM(Scorer):
    """`ReLU(Σ_c α_c A_c)`, where α_c is DeepLIFT's contribution of channel c to the predicted class's logit.

    The reference is a map of zeros. For a classifier that reads the mean of the map, as here, α_c is the mean of A_c
    times the classifier's weight; the contributions add up to the logit without its bias, and are the exact SHAP
    values.
    """

    reads = "convnet"
    needs_classes = True

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        return activation(self.raw(self.prepared(images)), self.grid)

    def raw(self, images: Float[Array, "b *sides c"]) -> Float[Array, "b *map"]:
        """The weighted sum before the ReLU."""
        features = feature_map(self.proposal, images).astype(jnp.float32)
        return jnp.einsum("b...c,bc->b...", features, self.contributions(features))

    def contributions(self, features: Float[Array, "b *map c"]) -> Float[Array, "b c"]:
        """The contribution of each channel."""
        return features.mean(tuple(range(1, features.ndim - 1))) * class_rows(self.proposal, features)
