"""A bottleneck of a ResNet that computes some places, some channels, or nothing (LAUDNet, Han et al., 2023)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxprune.dynamic.parts.gates import Draws, Gate, of_channels, on_map, reached
from jaxprune.dynamic.parts.maskers import COMPUTES, MASKERS, ChannelConv, ChannelMlp, SpatialMasker
from jaxprune.errors import UserError, unknown
from jaxprune.models.resnet import Residual

MODES = ("spatial", "channel", "both", "layer")


class Densities(NamedTuple):
    """Shares of a block that are computed.

    Attributes:
      channel: of the inner channels.
      conv1, conv2, conv3: of the places of the outputs of each convolution.
    """

    channel: Float[Array, "*b"]
    conv1: Float[Array, "*b"]
    conv2: Float[Array, "*b"]
    conv3: Float[Array, "*b"]


class GatedResidual(Residual):
    """A bottleneck with gates.

    Places: only the last convolution's output is multiplied by the mask; the others run densely here, and count as far
    as the last one reads them. Channels: both inner convolutions' outputs are multiplied before their norms, so that a
    skipped channel becomes a constant.

    Args:
      mode: "spatial" (cells of the map), "channel", "both", or "layer" (the whole block).
      side: of the output.
      granularity: side of a cell, in places.
      mask_groups: groups of the output's channels with masks of their own.
      channel_granularity: consecutive channels that are skipped together.
      masker, masker_layers, reduction: of the channels' gate: "mlp" of one or two layers, or "conv_linear".
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        stride: int,
        *,
        mode: str,
        side: int,
        granularity: int = 1,
        mask_groups: int = 1,
        channel_granularity: int = 1,
        masker: str = "mlp",
        masker_layers: int = 1,
        reduction: int = 16,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        if mode not in MODES:
            raise unknown("mode", mode, MODES)
        if masker not in MASKERS:
            raise unknown("channel masker", masker, MASKERS)
        if channel_granularity < 1 or width % channel_granularity:
            raise UserError(
                f"{width} channels cannot be skipped {channel_granularity} at a time: use a divisor of {width}."
            )
        outputs = 4 * width
        if mask_groups < 1 or outputs % mask_groups:
            raise UserError(f"{outputs} channels have no {mask_groups} mask_groups: use a divisor of {outputs}.")
        if masker_layers not in (1, 2) or reduction < 1:
            raise UserError(
                f"masker_layers={masker_layers} and reduction={reduction}: a gate has 1 or 2 layers, and reduction is "
                "at least 1."
            )
        super().__init__(inputs, width, stride, bottleneck=True, dtype=dtype, rngs=rngs)
        common = {"dtype": dtype, "rngs": rngs}
        cells = 1 if mode == "layer" else side // granularity
        spatial = SpatialMasker(inputs, mask_groups, cells, **common) if mode != "channel" else None
        channel: Any = None
        if mode in ("channel", "both"):
            groups = width // channel_granularity
            channel = (
                ChannelConv(inputs, groups, reduction=reduction, **common)
                if masker == "conv_linear"
                else ChannelMlp(inputs, groups, layers=masker_layers, reduction=reduction, **common)
            )
        self.masker_spatial, self.masker_channel = nnx.data(spatial), nnx.data(channel)
        self.mode, self.inputs, self.width, self.stride, self.out_side = mode, inputs, width, stride, side

    def gated(
        self, x: Float[Array, "b h w i"], draws: Draws, temperature: float | Array, *, train: bool = False
    ) -> tuple[Float[Array, "b H W o"], dict[str, Gate], Densities]:
        """Runs the block: its map, its decisions, and what they leave to compute."""
        gates: dict[str, Gate] = {}
        ones = jnp.ones((len(x),), jnp.float32)
        densities, channels = Densities(ones, ones, ones, ones), None
        if self.masker_channel is not None:
            gates["masker_channel"] = gate = self.masker_channel(x, draws, temperature, train=train)
            channels, densities = of_channels(gate.open, self.width), densities._replace(channel=gate.density)
        y = self.branch(x, channels, train=train)
        if self.masker_spatial is not None:
            gates["masker_spatial"] = gate = self.masker_spatial(x, draws, temperature)
            sides = (self.out_side, self.out_side)
            cells = on_map(gate.open, sides, gate.open.shape[-1])
            second = reached(cells)
            first = reached(second.astype(jnp.float32), stride=self.stride, padding=1)
            share = lambda places: places.astype(jnp.float32).mean((1, 2, 3))
            densities = densities._replace(conv1=share(first), conv2=share(second), conv3=gate.density)
            y = y * on_map(gate.open, sides, y.shape[-1]).astype(y.dtype)
        return jax.nn.relu(y + self.shortcut(x, train=train)), gates, densities

    def branch(
        self, x: Float[Array, "b h w i"], channels: Float[Array, "b 1 1 c"] | None = None, *, train: bool = False
    ) -> Float[Array, "b H W o"]:
        """The three convolutions, before any mask of places."""
        y = x
        for index in (1, 2, 3):
            y = getattr(self, f"conv{index}")(y)
            if channels is not None and index < 3:
                y = y * channels.astype(y.dtype)
            y = getattr(self, f"bn{index}")(y, train=train)
            y = jax.nn.relu(y) if index < 3 else y
        return y

    def shortcut(self, x: Float[Array, "b h w i"], *, train: bool = False) -> Float[Array, "b H W o"]:
        """What is added to the convolutions."""
        if not len(self.downsample):
            return x
        conv, norm = self.downsample
        return norm(conv(x), train=train)

    def opens(self, x: Float[Array, "b h w i"]) -> Bool[Array, "b"]:
        """Whether a block of mode "layer" computes each image, by its more probable decision."""
        gate = self.masker_spatial(x, Draws(), 1.0)
        return gate.logits.argmax(-1)[:, 0, 0, 0] == COMPUTES

    def always_macs(self) -> int:
        """Multiply-accumulates of the gates, which are part of every count of the block."""
        entering = self.out_side * self.stride
        maskers = (self.masker_channel, self.masker_spatial)
        return sum(masker.macs(entering) for masker in maskers if masker is not None)

    def macs(self, densities: Densities) -> Float[Array, "*b"]:
        """Multiply-accumulates under densities; the shortcut is always computed."""
        leaving, outputs = self.out_side**2, 4 * self.width
        first = self.inputs * self.width * leaving * self.stride**2 * densities.channel * densities.conv1
        second = 9 * self.width**2 * leaving * densities.channel**2 * densities.conv2
        third = self.width * outputs * leaving * densities.channel * densities.conv3
        shortcut = self.inputs * outputs * leaving if len(self.downsample) else 0
        return first + second + third + shortcut + self.always_macs()
