"""The gates of LAUDNet: which places of a map, or which channels of a block, are computed (Han et al., 2023)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.dynamic.parts.gates import Draws, Gate, decide
from jaxprune.nn import BatchNorm, Conv, Linear
from jaxprune.nn.linear import torch_uniform
from jaxprune.ops.adaptive_average import adaptive_average

COMPUTES = 0  # index of the gates' logits that means "compute"
MASKERS = ("mlp", "conv_linear")
_SPATIAL_BIAS, _CHANNEL_BIAS = (5.0, 0.0), (2.0, -2.0)  # of "compute" and of "skip"
_LEAST_HIDDEN = 16  # of the channel masker's MLP


class _Relu(nnx.Module):
    """An activation; a layer without arrays, so that the one after it has the published number."""

    def __call__(self, x: Float[Array, "b c"]) -> Float[Array, "b c"]:
        return jax.nn.relu(x)


class SpatialMasker(nnx.Module):
    """Decides for each cell of a map, and each group of channels, whether a block computes it.

    Args:
      channels: of the map.
      groups: of channels with a decision each.
      mask_size: cells along a side; 1 decides for a whole image.
    """

    def __init__(self, channels: int, groups: int, mask_size: int, *, dtype: Any = None, rngs: nnx.Rngs):
        self.conv = Conv(channels, 2 * groups, use_bias=True, dtype=dtype, rngs=rngs)
        _start_uniform(self.conv, channels, rngs)
        _start_bias(self.conv, groups, _SPATIAL_BIAS)
        self.channels, self.groups, self.mask_size = channels, groups, mask_size

    def __call__(self, x: Float[Array, "b h w c"], draws: Draws, temperature: float | Array) -> Gate:
        """The decisions, (b, m, m, g)."""
        cells = adaptive_average(x, self.mask_size) if self.mask_size < x.shape[1] else x
        return _decided(self.conv(cells), self.groups, draws, temperature)

    def macs(self, side: int) -> int:
        """Multiply-accumulates on a map of this side."""
        return min(self.mask_size, side) ** 2 * self.channels * (2 * self.groups + 2)


class ChannelMlp(nnx.Module):
    """Decides for each group of a block's channels, by one or two linear layers of the pooled map.

    Args:
      channels: of the map.
      groups: of the block's channels with a decision each.
      layers: 1 or 2.
      reduction: the hidden layer has the groups divided by this, at least 16.
    """

    def __init__(self, channels: int, groups: int, *, layers: int, reduction: int, dtype: Any = None, rngs: nnx.Rngs):
        hidden = max(groups // reduction, _LEAST_HIDDEN)
        sizes = [(channels, hidden), (hidden, 2 * groups)] if layers == 2 else [(channels, 2 * groups)]
        parts = [Linear(old, new, kernel_init=torch_uniform(old), dtype=dtype, rngs=rngs) for old, new in sizes]
        for part, (old, _) in zip(parts, sizes, strict=True):
            part.bias[...] = torch_uniform(old)(rngs.params(), part.bias.shape)
        _start_bias(parts[-1], groups, _CHANNEL_BIAS)
        # The published names count the activation between two layers, and do not count a single layer.
        self.conv: Any = parts[0] if layers == 1 else nnx.List([parts[0], _Relu(), parts[1]])
        self.channels, self.groups, self.sizes = channels, groups, tuple(sizes)

    def __call__(
        self, x: Float[Array, "b h w c"], draws: Draws, temperature: float | Array, *, train: bool = False
    ) -> Gate:
        """The decisions, (b, g)."""
        y = x.mean((1, 2))
        for layer in (self.conv,) if isinstance(self.conv, Linear) else self.conv:
            y = layer(y)
        return _decided(y, self.groups, draws, temperature)

    def macs(self, side: int) -> int:
        """Multiply-accumulates on a map of this side."""
        return self.channels * side**2 + sum(old * new for old, new in self.sizes)


class ChannelConv(nnx.Module):
    """Decides for each group of a block's channels: a 1×1 convolution, a norm, then a linear layer of the pooled map.

    Args:
      channels: of the map.
      groups: of the block's channels with a decision each.
      reduction: the convolution divides the channels by this.
    """

    def __init__(self, channels: int, groups: int, *, reduction: int, dtype: Any = None, rngs: nnx.Rngs):
        hidden = max(channels // reduction, 1)
        self.conv = nnx.List([Conv(channels, hidden, dtype=dtype, rngs=rngs), BatchNorm(hidden)])
        _start_uniform(self.conv[0], channels, rngs)
        self.linear = Linear(hidden, 2 * groups, kernel_init=torch_uniform(hidden), dtype=dtype, rngs=rngs)
        self.linear.bias[...] = torch_uniform(hidden)(rngs.params(), self.linear.bias.shape)
        _start_bias(self.linear, groups, _CHANNEL_BIAS)
        self.channels, self.hidden, self.groups, self.reduction = channels, hidden, groups, reduction

    def __call__(
        self, x: Float[Array, "b h w c"], draws: Draws, temperature: float | Array, *, train: bool = False
    ) -> Gate:
        """The decisions, (b, g)."""
        conv, norm = self.conv
        pooled = jax.nn.relu(norm(conv(x), train=train)).mean((1, 2))
        return _decided(self.linear(pooled), self.groups, draws, temperature)

    def macs(self, side: int) -> int:
        """Multiply-accumulates as the published code counts them: the convolution once, not at every place."""
        return self.hidden * side**2 + self.channels**2 // self.reduction + self.hidden * 2 * self.groups


def _decided(logits: Float[Array, "b *places f"], groups: int, draws: Draws, temperature: float | Array) -> Gate:
    pairs = logits.astype(jnp.float32).reshape(*logits.shape[:-1], 2, groups).swapaxes(-1, -2)
    return decide(pairs, computes=COMPUTES, noise=draws.next(pairs.shape), temperature=temperature)


def _start_uniform(conv: Conv, inputs: int, rngs: nnx.Rngs) -> None:
    """PyTorch's default initialisation."""
    for variable in (conv.kernel, conv.bias):
        if variable is not None:
            variable[...] = torch_uniform(inputs)(rngs.params(), variable.shape)


def _start_bias(layer: Any, groups: int, values: tuple[float, float]) -> None:
    """Sets the biases of "compute" and "skip"; the published code leaves the first of "skip" as it is drawn."""
    compute, skip = values
    layer.bias[...] = layer.bias[...].at[:groups].set(compute).at[groups + 1 :].set(skip)
