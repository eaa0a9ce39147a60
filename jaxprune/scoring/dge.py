"""DGE: the similarity of each patch's key to the CLS token's (Song et al., 2021)."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.scoring.parts.base import Scorer
from jaxprune.scoring.parts.maps import to_grid
from jaxprune.scoring.parts.networks import attended, require_every_patch


class DGE(Scorer):
    """Dot product of the CLS token's key with each patch's key in the last block, unscaled, averaged over heads.

    Images smaller than the network's input are zero-padded on all sides, as published (224 to 256); the map is then
    resized to `grid`, bicubic. With a key, regions choose their granularities with Gumbel noise as in training; the
    published selector always does.
    """

    reads = "vit"
    needs_sequence = True
    needs_cls = True
    dims: ClassVar = (2,)

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        vit = self.proposal
        padded = _padded(self.prepared(images), vit.patch_embed.img_size)
        keys = jnp.asarray(attended(vit, padded, frozenset({"keys"}), train_key=key).keys)
        require_every_patch(vit, keys.shape[2], -1)
        return self.agreement(keys, vit.grid)

    def agreement(self, keys: Float[Array, "b h n d"], grid: tuple[int, int]) -> Float[Array, "b p"]:
        """The scores from the keys of all tokens, the CLS token first and the patches last."""
        patches = keys[:, :, keys.shape[2] - grid[0] * grid[1] :]
        dots = jnp.einsum("bhd,bhpd->bhp", keys[:, :, 0], patches).astype(jnp.float32).mean(1)
        return to_grid(dots.reshape(-1, *grid), self.grid)


def _padded(images: Float[Array, "b H W c"], size: tuple[int, int]) -> Float[Array, "b h w c"]:
    """Zero-pads images to a size, with the image in the centre."""
    missing = [full - side for full, side in zip(size, images.shape[1:3], strict=True)]
    if min(missing) < 0:
        raise UserError(
            f"Images of {images.shape[1]}×{images.shape[2]} pixels are larger than the {size[0]}×{size[1]} that "
            "DGE's network expects: resize them."
        )
    edges = [(m // 2, m - m // 2) for m in missing]
    return jnp.pad(images, ((0, 0), *edges, (0, 0)))
