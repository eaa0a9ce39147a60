"""Square patches that cover an image of any side, padded with zeros (DVT's DeiT form)."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.patch_embed import PatchEmbed


class CoveringPatches(nnx.Module):
    """Cuts images into side² patches of ⌈img_size / side⌉ pixels, after padding them evenly, and projects each.

    >>> CoveringPatches(224, 10, 8, rngs=nnx.Rngs(0)).embed.patch_size
    (23, 23)

    Args:
      img_size: side of the square images in pixels.
      side: patches along a side.
      dim: width of the tokens.
    """

    def __init__(self, img_size: int, side: int, dim: int, *, in_chans: int = 3, **common: Any):
        patch = -(-img_size // side)
        missing = side * patch - img_size
        self.padding = (missing // 2, missing - missing // 2)
        self.embed = PatchEmbed(side * patch, patch, in_chans, dim, **common)

    def __call__(self, images: Float[Array, "b H W c"]) -> Float[Array, "b n d"]:
        """The tokens in raster order."""
        return self.embed(jnp.pad(images, ((0, 0), self.padding, self.padding, (0, 0))))

    def flops(self) -> int:
        """Multiply-accumulates of one image."""
        rows, columns = self.embed.grid
        return linear_flops(self.embed.proj, rows * columns)
