"""Eigen-CAM: the features of each place along their first principal direction (Muhammad and Yeasin, 2020)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.scoring.parts.base import Scorer
from jaxprune.scoring.parts.maps import activation
from jaxprune.scoring.parts.networks import feature_map


class EigenCAM(Scorer):
    """`A v`, where v is the first right singular vector of the last features A, a row for each place of the map.

    No class and no gradient is involved. The features are not centred (Eq. 2); the sign of v, which the paper leaves
    open, is the one for which the map has a positive sum.
    """

    reads = "any"

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        return activation(self.raw(self.prepared(images)), self.grid)

    def raw(self, images: Float[Array, "b *sides c"]) -> Float[Array, "b *map"]:
        """The projections before the ReLU."""
        maps = feature_map(self.proposal, images).astype(jnp.float32)
        rows = maps.reshape(maps.shape[0], -1, maps.shape[-1])
        # A v = σ u, from the Gram matrix of the places, which are fewer than the channels.
        values, vectors = jnp.linalg.eigh(jnp.einsum("bic,bjc->bij", rows, rows))
        first = vectors[..., -1] * jnp.sqrt(jnp.maximum(values[:, -1:], 0))
        sign = jnp.where(first.sum(1, keepdims=True) < 0, -1, 1)
        return (sign * first).reshape(maps.shape[:-1])
