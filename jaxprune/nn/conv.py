"""Convolutions of NHWC maps, each by the product that is fast for it."""

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.ops.depthwise import depthwise_conv2d


class Conv(nnx.Module):
    """A square convolution with the kernel (k, k, in / groups, out).

    A 1×1 convolution runs as one matrix product, a depth-wise one as `ops.depthwise_conv2d` does.

    Args:
      padding: zeros on every side, as PyTorch counts; or "SAME" as TensorFlow does: as many as leave input / stride
        places, the odd one below and right. By default k // 2.
      depthwise: every channel has a filter of its own.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int = 1,
        *,
        stride: int = 1,
        padding: int | Literal["SAME"] | None = None,
        depthwise: bool = False,
        use_bias: bool = False,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        shape = (kernel_size, kernel_size, 1 if depthwise else in_features, out_features)
        # He et al. (2015): what a value of the input reaches keeps its variance under ReLU.
        reached = kernel_size**2 * (1 if depthwise else out_features)
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), shape, jnp.float32) * math.sqrt(2 / reached))
        self.bias = nnx.data(nnx.Param(jnp.zeros((out_features,), jnp.float32)) if use_bias else None)
        self.stride, self.depthwise, self.dtype = stride, depthwise, dtype
        self.padding: int | str = kernel_size // 2 if padding is None else padding

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b H W o"]:
        x = x.astype(self.dtype or x.dtype)
        kernel = self.kernel[...].astype(x.dtype)
        size, stride = kernel.shape[0], self.stride
        pads = (self._pads(x.shape[1], size), self._pads(x.shape[2], size))
        if self.depthwise:
            y = depthwise_conv2d(x, kernel[:, :, 0], stride=stride, padding=pads)
        elif size == 1 and pads == ((0, 0), (0, 0)):
            x = x[:, ::stride, ::stride]
            y = (x.reshape(-1, x.shape[-1]) @ kernel[0, 0]).reshape(*x.shape[:-1], -1)
        else:
            y = jax.lax.conv_general_dilated(
                x, kernel, (stride, stride), pads, dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        return y if self.bias is None else y + self.bias[...].astype(y.dtype)[None, None, None, :]

    def _pads(self, side: int, size: int) -> tuple[int, int]:
        if isinstance(self.padding, int):
            return self.padding, self.padding
        total = max((-(-side // self.stride) - 1) * self.stride + size - side, 0)
        return total // 2, total - total // 2
