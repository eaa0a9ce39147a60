"""SimMIM's decoder: a linear layer that maps each cell of the encoder's map to the pixels of the cell."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.mim.parts.decoder import Decoder
from jaxprune.mim.parts.masker import Masks
from jaxprune.mim.parts.partial_reconstruction import FULL, Partial
from jaxprune.mim.parts.rebuild_thrown import fill_grid
from jaxprune.nn import Linear
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.linear import torch_uniform
from jaxprune.ops.patches import patchify


class LinearDecoderFlops(NamedTuple):
    """The cost of a `LinearDecoder` by part."""

    aggregate: int
    predict: int

    total = property(sum)  # of all parts


class LinearDecoder(Decoder):
    """A 1×1 convolution with pixel shuffle on the encoder's map (SimMIM, Xie et al., 2022, Sec. 3.3).

    Thrown cells of the map are zero; "progressive" first rebuilds them from their neighbours (PR-MIM).

    Args:
      in_dim: width of the encoder's tokens.
      grid: (rows, columns) of the encoder's map.
      stride: (height, width) of a cell in pixels.
      patch_size: size of the masked patches in pixels; a cell holds one or several of them.
      in_chans: channels of the images.
      num_prefix_tokens: number of prefix tokens of the encoder.
      partial: the kind of reconstruction, and how thrown patches are rebuilt.
      num_heads: heads of a "transformer" aggregator.
      dtype: compute dtype; parameters stay float32.
    """

    def __init__(
        self,
        in_dim: int,
        *,
        grid: tuple[int, int],
        stride: tuple[int, int],
        patch_size: tuple[int, int],
        in_chans: int = 3,
        num_prefix_tokens: int = 0,
        partial: Partial = FULL,
        num_heads: int = 1,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        self.grid, self.stride, self.patch_size, self.in_chans = grid, stride, patch_size, in_chans
        self.num_prefix_tokens, self.reconstruction = num_prefix_tokens, partial.reconstruction
        uniform = torch_uniform(in_dim)  # which SimMIM does not change
        size = math.prod(stride) * in_chans
        self.pred = Linear(in_dim, size, kernel_init=uniform, dtype=dtype, rngs=rngs)
        self.pred.bias[...] = uniform(rngs.params(), (size,))
        self.aggregate = nnx.data(
            partial.create_aggregation(in_dim, num_heads=num_heads, mlp_ratio=4.0, dtype=dtype, rngs=rngs)
        )

    def cells(self, latent: Float[Array, "b n d"], masks: Masks) -> Float[Array, "b m d"]:
        """The encoder's map, in raster order: the input of the linear layer."""
        x = latent[:, self.num_prefix_tokens :]
        if x.shape[1] < math.prod(self.grid):
            x = fill_grid(x, masks.present)
        return x if self.aggregate is None else self.aggregate(x, masks.thrown, self.grid)

    def pixels(self, cells: Float[Array, "b m d"]) -> Float[Array, "b H W c"]:
        """Maps cells to an image, in float32; in the layer's output, channels vary slowest and columns fastest."""
        values = self.pred(cells).astype(jnp.float32)
        (rows, columns), (height, width), c = self.grid, self.stride, self.in_chans
        raster = values.reshape(-1, rows, columns, c, height, width).transpose(0, 1, 4, 2, 5, 3)
        return raster.reshape(-1, rows * height, columns * width, c)

    def patches(self, images: Float[Array, "b H W c"], masks: Masks) -> Float[Array, "b p q"]:
        """Cuts an image into predictions of its patches; zeros where there is none."""
        pred = patchify(images, self.patch_size)
        return jnp.where(masks.present[:, :, None], pred, 0.0) if self.reconstruction == "partial" else pred

    def __call__(self, latent: Float[Array, "b n d"], masks: Masks) -> Float[Array, "b p q"]:
        return self.patches(self.pixels(self.cells(latent, masks)), masks)

    def flops(self, visible: int, present: int, *, as_published: bool = True) -> LinearDecoderFlops:
        """Multiply-accumulates of one image by part; every cell is predicted, masked or not."""
        aggregate = 0 if self.aggregate is None else self.aggregate.flops(self.grid)
        return LinearDecoderFlops(aggregate, linear_flops(self.pred, math.prod(self.grid)))
