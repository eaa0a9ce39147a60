"""Progressive reconstruction: thrown tokens are rebuilt from the decoded ones around them (PR-MIM, Sec. 3.2)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxprune.errors import UserError, unknown
from jaxprune.nn.linear import normal_02
from jaxprune.ops.depthwise import depthwise_conv2d

MODES = ("thrown", "all", "residual")


class DepthwiseAggregation(nnx.Module):
    """A k×k depth-wise convolution over the grid of decoded tokens, zeros where tokens were thrown.

    Args:
      dim: channels.
      kernel_size: k, odd.
      mode: "thrown" takes the convolution at thrown cells and the decoded token elsewhere, so that nothing thrown is
        exactly MAE; "all" takes it everywhere; "residual" adds it to the zero-filled grid.
    """

    def __init__(self, dim: int, kernel_size: int = 7, mode: str = "thrown", *, rngs: nnx.Rngs):
        if mode not in MODES:
            raise unknown("aggregation", mode, MODES)
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise UserError(f"kernel_size {kernel_size} has no centre: use {kernel_size + 1}, an odd one.")
        self.kernel = nnx.Param(normal_02(rngs.params(), (kernel_size, kernel_size, dim)))
        self.bias = nnx.Param(jnp.zeros((dim,), jnp.float32))
        self.mode = mode

    def __call__(
        self, x: Float[Array, "b p d"], thrown: Bool[Array, "b p"], grid: tuple[int, int]
    ) -> Float[Array, "b p d"]:
        """Rebuilds thrown tokens.

        Args:
          x: decoded tokens on the full grid, zero at thrown cells.
          thrown: where a token was thrown.
        """
        b, p, d = x.shape
        kernel, bias = self.kernel[...].astype(x.dtype), self.bias[...].astype(x.dtype)
        rebuilt = depthwise_conv2d(x.reshape(b, *grid, d), kernel, bias).reshape(b, p, d)
        if self.mode == "thrown":
            return jnp.where(thrown[:, :, None], rebuilt, x)
        return rebuilt if self.mode == "all" else x + rebuilt


def fill_grid(x: Float[Array, "b m d"], present: Bool[Array, "b p"]) -> Float[Array, "b p d"]:
    """Puts tokens, in ascending grid order, on the cells that are `present`; zeros elsewhere."""
    padded = jnp.concatenate([x, jnp.zeros_like(x[:, :1])], axis=1)
    rank = jnp.cumsum(present, axis=1, dtype=jnp.int32) - 1
    return jax.vmap(lambda rows, ids: rows[ids])(padded, jnp.where(present, rank, x.shape[1]))
