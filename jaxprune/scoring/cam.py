"""CAM: the last feature map weighted by the classifier's row for the predicted class (Zhou et al., 2016)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.scoring.parts.base import Scorer
from jaxprune.scoring.parts.maps import activation
from jaxprune.scoring.parts.networks import class_rows, feature_map


class CAM(Scorer):
    """`ReLU(Σ_c w_c A_c)` for a ConvNet whose classifier reads the mean of its last feature map A."""

    reads = "convnet"
    needs_classes = True

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        return activation(self.raw(self.prepared(images)), self.grid)

    def raw(self, images: Float[Array, "b *sides c"]) -> Float[Array, "b *map"]:
        """The weighted sum before the ReLU."""
        features = feature_map(self.proposal, images).astype(jnp.float32)
        return jnp.einsum("b...c,bc->b...", features, class_rows(self.proposal, features))
