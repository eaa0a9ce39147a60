"""Progressive reconstruction: thrown tokens are rebuilt from the decoded ones (PR-MIM, Sec. 3.2, Tab. 12)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxprune.errors import UserError, unknown
from jaxprune.nn import Block, LayerNorm, Mlp
from jaxprune.nn.block_cost import block_flops, block_tokens, linear_flops
from jaxprune.nn.linear import normal_02, xavier_uniform
from jaxprune.nn.tensor_rules import Rule, depthwise, depthwise_back, within
from jaxprune.nn.tokens import all_present
from jaxprune.ops.depthwise import depthwise_conv2d
from jaxprune.ops.posembed import sincos_2d

# No weights of a decoder's aggregation were published: "agg" is the name a PyTorch module would save it under; the full
# name is read too.
PUBLISHED = tuple(
    rule
    for name in ("agg.", "aggregate.")
    for rule in (
        Rule(f"{name}weight", "aggregate.kernel", depthwise, depthwise_back),
        Rule(f"{name}conv_dw.weight", "aggregate.conv_dw.kernel", depthwise, depthwise_back),
        *within(name, "aggregate."),
    )
)
AGGREGATORS = ("depthwise", "avg_pool", "transformer", "convnext")
MODES = ("thrown", "all", "residual")


class Aggregation(nnx.Module):
    """Rebuilds tokens from the grid around them; subclasses define how.

    Args:
      mode: "thrown" uses the rebuilt tokens at thrown cells and the decoded tokens elsewhere, which equals MAE if
        nothing is thrown; "all" uses the rebuilt tokens everywhere; "residual" adds them to the zero-filled grid.
    """

    def __init__(self, mode: str = "thrown"):
        if mode not in MODES:
            raise unknown("aggregation", mode, MODES)
        self.mode = mode

    def rebuild(self, x: Float[Array, "b h w d"]) -> Float[Array, "b h w d"]:
        """Rebuilds every cell of a grid with zeros at thrown cells."""
        raise NotImplementedError

    def flops(self, grid: tuple[int, int]) -> int:
        """Multiply-accumulates of one image."""
        raise NotImplementedError

    def __call__(
        self, x: Float[Array, "b p d"], thrown: Bool[Array, "b p"], grid: tuple[int, int]
    ) -> Float[Array, "b p d"]:
        """Rebuilds thrown tokens.

        Args:
          x: decoded tokens on the full grid, zero at thrown cells.
          thrown: True where a token was thrown.
        """
        b, p, d = x.shape
        rebuilt = self.rebuild(x.reshape(b, *grid, d)).reshape(b, p, d)
        if self.mode == "thrown":
            return jnp.where(thrown[:, :, None], rebuilt, x)
        return rebuilt if self.mode == "all" else x + rebuilt


class DepthwiseAggregation(Aggregation):
    """A k×k depth-wise convolution, with zeros where tokens were thrown.

    Args:
      dim: channels.
      kernel_size: k, odd.
      mode: see `Aggregation`.
    """

    def __init__(self, dim: int, kernel_size: int = 7, mode: str = "thrown", *, rngs: nnx.Rngs):
        super().__init__(mode)
        _check_kernel(kernel_size)
        self.kernel = nnx.Param(normal_02(rngs.params(), (kernel_size, kernel_size, dim)))
        self.bias = nnx.Param(jnp.zeros((dim,), jnp.float32))

    def rebuild(self, x: Float[Array, "b h w d"]) -> Float[Array, "b h w d"]:
        return depthwise_conv2d(x, self.kernel[...].astype(x.dtype), self.bias[...].astype(x.dtype))

    def flops(self, grid: tuple[int, int]) -> int:
        rows, columns, dim = self.kernel.shape
        return grid[0] * grid[1] * rows * columns * dim


class AveragePooling(Aggregation):
    """The mean over the k×k neighbourhood, with zeros at thrown cells and beyond the border; no parameters."""

    def __init__(self, kernel_size: int = 7, mode: str = "thrown"):
        super().__init__(mode)
        _check_kernel(kernel_size)
        self.kernel_size = kernel_size

    def rebuild(self, x: Float[Array, "b h w d"]) -> Float[Array, "b h w d"]:
        k = self.kernel_size
        return depthwise_conv2d(x, jnp.full((k, k, x.shape[-1]), 1 / k**2, x.dtype))

    def flops(self, grid: tuple[int, int]) -> int:
        return 0  # additions only


class TransformerAggregation(Aggregation):
    """A transformer block over all cells, with zeros at thrown ones.

    A thrown cell carries no position, so sin-cos positions are added to the block's input: without them every thrown
    patch of an image would be rebuilt identically.
    """

    def __init__(
        self, dim: int, num_heads: int, mode: str = "thrown", *, mlp_ratio: float = 4.0, dtype=None, rngs: nnx.Rngs
    ):
        super().__init__(mode)
        self.block = Block(dim, num_heads, mlp_ratio=mlp_ratio, kernel_init=xavier_uniform, dtype=dtype, rngs=rngs)

    def rebuild(self, x: Float[Array, "b h w d"]) -> Float[Array, "b h w d"]:
        b, height, width, d = x.shape
        positions = jnp.asarray(sincos_2d(d, (height, width), 0), x.dtype)
        tokens = all_present(x.reshape(b, height * width, d) + positions[None], 0)
        return self.block(tokens)[0].x.reshape(x.shape)

    def flops(self, grid: tuple[int, int]) -> int:
        cells = grid[0] * grid[1]
        return block_flops(self.block.cost(), block_tokens(None, cells, cells))


class ConvNeXtAggregation(Aggregation):
    """A ConvNeXt block (Liu et al., 2022): `x + mlp(norm(conv_dw(x)))` with a k×k depth-wise convolution."""

    def __init__(
        self,
        dim: int,
        kernel_size: int = 7,
        mode: str = "thrown",
        *,
        mlp_ratio: float = 4.0,
        dtype=None,
        rngs: nnx.Rngs,
    ):
        super().__init__(mode)
        self.conv_dw = DepthwiseAggregation(dim, kernel_size, rngs=rngs)
        self.norm = LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), kernel_init=xavier_uniform, dtype=dtype, rngs=rngs)

    def rebuild(self, x: Float[Array, "b h w d"]) -> Float[Array, "b h w d"]:
        return x + self.mlp(self.norm(self.conv_dw.rebuild(x)))

    def flops(self, grid: tuple[int, int]) -> int:
        layers = (self.mlp.fc1, self.mlp.fc2)
        return self.conv_dw.flops(grid) + sum(linear_flops(layer, grid[0] * grid[1]) for layer in layers)


def create_aggregation(
    name: str, dim: int, *, kernel_size: int, mode: str, num_heads: int, mlp_ratio: float, dtype=None, rngs: nnx.Rngs
) -> Aggregation:
    """Builds one of `AGGREGATORS`; each uses those of the arguments that it has.

    Raises:
      UserError: the name, the mode or the kernel size is invalid.
    """
    if name == "depthwise":
        return DepthwiseAggregation(dim, kernel_size, mode, rngs=rngs)
    if name == "avg_pool":
        return AveragePooling(kernel_size, mode)
    if name == "transformer":
        return TransformerAggregation(dim, num_heads, mode, mlp_ratio=mlp_ratio, dtype=dtype, rngs=rngs)
    if name == "convnext":
        return ConvNeXtAggregation(dim, kernel_size, mode, mlp_ratio=mlp_ratio, dtype=dtype, rngs=rngs)
    raise unknown("aggregator", name, AGGREGATORS)


def _check_kernel(kernel_size: int) -> None:
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise UserError(f"kernel_size {kernel_size} has no centre: use {kernel_size + 1}, an odd one.")


def fill_grid(x: Float[Array, "b m d"], present: Bool[Array, "b p"]) -> Float[Array, "b p d"]:
    """Scatters tokens, in ascending grid order, to the cells that are `present`; zeros elsewhere."""
    padded = jnp.concatenate([x, jnp.zeros_like(x[:, :1])], axis=1)
    rank = jnp.cumsum(present, axis=1, dtype=jnp.int32) - 1
    return jax.vmap(lambda rows, ids: rows[ids])(padded, jnp.where(present, rank, x.shape[1]))


def aggregation_of(shapes: Mapping[str, tuple[int, ...]], prefix: str = "") -> dict[str, Any]:
    """Infers the arguments of PR-MIM's aggregation from tensors whose names begin with `prefix`; {} without one."""
    for aggregator, kernel in (("depthwise", "agg.weight"), ("convnext", "agg.conv_dw.weight")):
        if (size := shapes.get(prefix + kernel)) is not None:
            return {"aggregator": aggregator, "kernel_size": size[-1], "reconstruction": "progressive"}
    if any(name.startswith(f"{prefix}agg.block.") for name in shapes):
        return {"aggregator": "transformer", "reconstruction": "progressive"}
    return {}
