"""Norm: the magnitude of the features at each location, or of the pixels if there is no network."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.nn.images import require_float
from jaxprune.scoring.parts.base import Scorer
from jaxprune.scoring.parts.maps import to_grid
from jaxprune.scoring.parts.networks import feature_map


class Norm(Scorer):
    """The L2 norm of the last features over channels, bicubic to the grid; without `proposal`, that of the pixels.

    For clips, the grid consists of tubes.
    """

    reads = "optional"

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        if self.proposal is None:
            return jnp.linalg.norm(self._cells(images).astype(jnp.float32), axis=-1)
        features = feature_map(self.proposal, self.prepared(images)).astype(jnp.float32)
        return to_grid(jnp.linalg.norm(features, axis=-1), self.grid, align_corners=True)

    def _cells(self, images: Float[Array, "b *sides c"]) -> Float[Array, "b p q"]:
        """The pixels of each patch or tube, in raster order."""
        require_float(images)
        sides, grid, dims = images.shape[1:-1], self.grid, len(self.grid)
        if len(sides) != dims or any(side % cells for side, cells in zip(sides, grid, strict=True)):
            size, cut = "×".join(map(str, sides)), "×".join(map(str, grid))
            fits = "×".join(str(-(-side // cells) * cells) for side, cells in zip(sides, grid, strict=False))
            raise UserError(
                f"Images of {size} pixels do not divide into {cut} equal patches: resize them to {fits}, or pass "
                "another grid."
            )
        split = [part for side, cells in zip(sides, grid, strict=True) for part in (cells, side // cells)]
        cells = images.reshape(images.shape[0], *split, images.shape[-1])
        order = (0, *range(1, 2 * dims, 2), *range(2, 2 * dims + 1, 2), 2 * dims + 1)
        return cells.transpose(order).reshape(images.shape[0], self.num_patches, -1)
