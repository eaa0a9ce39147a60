"""Convolutions of NHWC maps and of NTHWC clips, each with a fast implementation."""

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.ops import winograd
from jaxprune.ops.depthwise import depthwise_conv2d, depthwise_conv3d


class Conv(nnx.Module):
    """A square convolution with the kernel (k, k, in / groups, out).

    A 1×1 convolution runs as one matrix product, a depth-wise one as `ops.depthwise_conv2d` does, and on CPU a 3×3
    one of large maps as `ops.winograd` does.

    Args:
      padding: zeros on every side, as in PyTorch; or "SAME" as in TensorFlow: output size input / stride, with an odd
        zero below and right. By default k // 2.
      depthwise: one filter per channel.
      groups: of consecutive channels, each convolved apart.
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
        groups: int = 1,
        use_bias: bool = False,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        shape = (kernel_size, kernel_size, 1 if depthwise else in_features // groups, out_features)
        # He et al. (2015), fan-out mode: preserves the variance in the backward pass under ReLU.
        reached = kernel_size**2 * (1 if depthwise else out_features)
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), shape, jnp.float32) * math.sqrt(2 / reached))
        self.bias = nnx.data(nnx.Param(jnp.zeros((out_features,), jnp.float32)) if use_bias else None)
        self.stride, self.depthwise, self.groups, self.dtype = stride, depthwise, groups, dtype
        self.padding: int | str = kernel_size // 2 if padding is None else padding

    def __call__(self, x: Float[Array, "b h w i"], *, padding: int | None = None) -> Float[Array, "b H W o"]:
        """Convolves maps.

        Args:
          padding: overrides the layer's padding.
        """
        x = x.astype(self.dtype or x.dtype)
        kernel = self.kernel[...].astype(x.dtype)
        size, stride = kernel.shape[0], self.stride
        pads: Any = (
            (self._pads(x.shape[1], size), self._pads(x.shape[2], size))
            if padding is None
            else ((padding, padding),) * 2
        )
        if self.depthwise:
            y = depthwise_conv2d(x, kernel[:, :, 0], stride=stride, padding=pads)
        elif size == 1 and pads == ((0, 0), (0, 0)) and self.groups == 1:
            x = x[:, ::stride, ::stride]
            y = (x.reshape(-1, x.shape[-1]) @ kernel[0, 0]).reshape(*x.shape[:-1], -1)
        elif stride == 1 and self.groups == 1 and winograd.is_faster(x, kernel):
            y = winograd.conv2d_3x3(x, kernel, pads)
        else:
            y = jax.lax.conv_general_dilated(
                x,
                kernel,
                (stride, stride),
                pads,
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=self.groups,
            )
        return y if self.bias is None else y + self.bias[...].astype(y.dtype)[None, None, None, :]

    def _pads(self, side: int, size: int) -> tuple[int, int]:
        if isinstance(self.padding, int):
            return self.padding, self.padding
        total = max((-(-side // self.stride) - 1) * self.stride + size - side, 0)
        return total // 2, total - total // 2


class Conv3d(nnx.Module):
    """A convolution of clips with the kernel (frames, k, k, in, out), depth-wise (frames, k, k, 1, out).

    It pads by half of each size. If it does not mix frames it runs as a `Conv` on each frame; if it only mixes frames,
    as a 2-D convolution over frames.

    Args:
      kernel_size: (frames, side); both odd.
      stride: spatial stride; the temporal stride is 1.
      depthwise: one filter per channel.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: tuple[int, int] = (1, 1),
        *,
        stride: int = 1,
        depthwise: bool = False,
        use_bias: bool = False,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        frames, side = kernel_size
        shape = (frames, side, side, 1 if depthwise else in_features, out_features)
        reached = frames * side**2 * (1 if depthwise else out_features)
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), shape, jnp.float32) * math.sqrt(2 / reached))
        self.bias = nnx.data(nnx.Param(jnp.zeros((out_features,), jnp.float32)) if use_bias else None)
        self.stride, self.depthwise, self.dtype = stride, depthwise, dtype

    def __call__(self, x: Float[Array, "b t h w i"]) -> Float[Array, "b t H W o"]:
        x = x.astype(self.dtype or x.dtype)
        kernel = self.kernel[...].astype(x.dtype)
        (frames, side), (b, t, h, w, _) = kernel.shape[:2], x.shape
        half, stride = side // 2, self.stride
        if self.depthwise:
            y = depthwise_conv3d(x, kernel[..., 0, :], stride=stride)
        elif frames == side == 1:
            x = x[:, :, ::stride, ::stride]
            y = (x.reshape(-1, x.shape[-1]) @ kernel[0, 0, 0]).reshape(*x.shape[:-1], -1)
        elif frames == 1:
            y = _conv(x.reshape(b * t, h, w, -1), kernel[0], (stride, stride), (half, half))
            y = y.reshape(b, t, *y.shape[1:])
        elif side == 1 and stride == 1:
            y = _conv(x.reshape(b, t, h * w, -1), kernel[:, 0], (1, 1), (frames // 2, 0)).reshape(b, t, h, w, -1)
        else:
            y = _conv(x, kernel, (1, stride, stride), (frames // 2, half, half))
        return y if self.bias is None else y + self.bias[...].astype(y.dtype)[None, None, None, None, :]


def _conv(x: Array, kernel: Array, strides: tuple[int, ...], pads: tuple[int, ...]) -> Array:
    """XLA's convolution, channels last, with `pads` zeros on both sides of each axis."""
    sides = "DHW"[-len(pads) :]
    layouts = (f"N{sides}C", f"{sides}IO", f"N{sides}C")
    return jax.lax.conv_general_dilated(x, kernel, strides, [(pad, pad) for pad in pads], dimension_numbers=layouts)
