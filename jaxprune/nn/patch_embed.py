"""Patch embedding."""

import math
import numbers
from collections.abc import Sequence
from typing import Any

from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.nn.linear import Linear, torch_uniform
from jaxprune.ops.patches import gather_tokens, patchify

_MOST_PATCHES = 2**24


def pair(value: int | Sequence[int]) -> tuple[int, int]:
    """Returns a pair; an int means a square."""
    return (int(value), int(value)) if isinstance(value, numbers.Integral) else (int(value[0]), int(value[1]))


def grid_of(img_size: int | Sequence[int], patch_size: int | Sequence[int], *, cut: bool = False) -> tuple[int, int]:
    """Returns the patch grid of an image, (rows, columns).

    Args:
      cut: whether the image need not be a whole number of patches.

    Raises:
      UserError: the image is not a whole number of patches.
    """
    (height, width), (rows, columns) = pair(img_size), pair(patch_size)
    if (height % rows or width % columns) and not (cut and height >= rows and width >= columns):
        raise UserError(
            f"img_size {height}x{width} is not a whole number of patches of {rows}x{columns}: "
            f"use {height // rows * rows or rows}x{width // columns * columns or columns} or another patch_size."
        )
    grid = height // rows, width // columns
    if math.prod(grid) > _MOST_PATCHES:
        raise UserError(f"img_size {height}x{width} has {math.prod(grid):,} patches of {rows}x{columns}: use less.")
    return grid


class PatchEmbed(nnx.Module):
    """Cuts images into patches and projects each one linearly.

    The projection is the published convolution (kernel = stride = patch) written as a matrix over patches in the
    order row, column, channel; as a `Linear` it can embed a subset of the patches.

    Args:
      norm: norm of the embedded patches; None leaves it out.
      cut: whether images need not be a whole number of patches; the remainder at the right and bottom is ignored.
    """

    def __init__(
        self,
        img_size,
        patch_size,
        in_chans: int,
        dim: int,
        *,
        use_bias: bool = True,
        norm: Any = None,
        cut: bool = False,
        kernel_init=None,
        dtype=None,
        rngs,
    ):
        self.img_size, self.patch_size, self.in_chans = pair(img_size), pair(patch_size), in_chans
        self.grid = grid_of(img_size, patch_size, cut=cut)
        inputs = self.patch_size[0] * self.patch_size[1] * in_chans
        uniform = torch_uniform(inputs)
        self.proj = Linear(inputs, dim, use_bias=use_bias, kernel_init=kernel_init or uniform, dtype=dtype, rngs=rngs)
        if use_bias:
            self.proj.bias[...] = uniform(rngs.params(), (dim,))
        self.norm = nnx.data(norm)

    def __call__(
        self, images: Float[Array, "b H W c"], ids_keep: Int[Array, "b k"] | None = None
    ) -> Float[Array, "b k d"]:
        """Embeds the patches `ids_keep` (in that order), or all of them in raster order."""
        if images.shape[1:] != (*self.img_size, self.in_chans):
            raise UserError(
                f"Images of shape {images.shape[1:]} do not fit a model for {(*self.img_size, self.in_chans)} "
                "(height, width, channels): resize them, or create the model with their img_size."
            )
        height, width = (count * side for count, side in zip(self.grid, self.patch_size, strict=True))
        patches = patchify(images[:, :height, :width], self.patch_size)
        x = self.proj(patches if ids_keep is None else gather_tokens(patches, ids_keep))
        return x if self.norm is None else self.norm(x)
