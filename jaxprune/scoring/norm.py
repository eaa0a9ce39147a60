"""Norm: the magnitude of the features at each location, or of the pixels if there is no network."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.ops.patches import patchify
from jaxprune.scoring.base import Scorer
from jaxprune.scoring.maps import to_grid
from jaxprune.scoring.networks import feature_map


class Norm(Scorer):
    """The L2 norm of the last features over channels, bicubic to the grid; without `proposal`, that of the pixels."""

    reads = "optional"

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        if self.proposal is None:
            return jnp.linalg.norm(patchify(images, self._patch_size(images)).astype(jnp.float32), axis=-1)
        features = feature_map(self.proposal, self.prepared(images)).astype(jnp.float32)
        return to_grid(jnp.linalg.norm(features, axis=-1), self.grid, align_corners=True)

    def _patch_size(self, images: Float[Array, "b H W c"]) -> tuple[int, int]:
        (height, width), (rows, columns) = images.shape[1:3], self.grid
        if height % rows or width % columns:
            raise UserError(
                f"Images of {height}×{width} pixels do not divide into {rows}×{columns} equal patches: resize them to "
                f"{-(-height // rows) * rows}×{-(-width // columns) * columns}, or pass another grid."
            )
        return height // rows, width // columns
