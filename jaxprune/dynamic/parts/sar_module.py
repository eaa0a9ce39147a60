"""A stage of SAR: a coarse branch decides where a fine branch refines, and a block fuses both (Han et al., 2021)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.dynamic.parts.gates import Draws, Gate, decide, on_map
from jaxprune.errors import UserError
from jaxprune.nn import BatchNorm, Conv
from jaxprune.ops.adaptive_average import adaptive_average
from jaxprune.ops.resize import resize

REFINES = 1  # index of the gates' logits that means "refine"
_GATE_WIDTH = 4  # channels of a gate, for each group
_SKIP_BIAS, _REFINE_BIAS = 1.0, 10.0
_GATE_STD = 0.001  # of the initial kernels of gates


def average_pool(x: Float[Array, "b h w c"]) -> Float[Array, "b H W c"]:
    """3×3 average pooling with stride 2; the zeros around the map count."""
    window, strides, pads = (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
    # JAX differentiates this reduction only if it starts from a constant.
    return jax.lax.reduce_window(x, np.zeros((), x.dtype), jax.lax.add, window, strides, pads) / 9


class _Pool(nnx.Module):
    """Average pooling; a layer without arrays, so that those after it have the published numbers."""

    def __call__(self, x: Float[Array, "b h w c"], *, train: bool = False) -> Float[Array, "b H W c"]:
        return average_pool(x)


class BranchBlock(nnx.Module):
    """A residual block whose shortcut pools before it projects; under a mask, every convolution sees masked input.

    A place that a mask leaves out gets the shortcut plus what the last norm makes of zeros, a constant a channel.

    Args:
      bottleneck: 1×1, 3×3 and 1×1 convolutions, the first two with a quarter of the channels; else two 3×3.
      groups: of the convolutions.
      last_relu: whether there is an activation after the sum.
      pools_first: halves the map before everything.
      zero_init: starts as the shortcut alone.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        stride: int = 1,
        bottleneck: bool,
        groups: int = 1,
        last_relu: bool = True,
        pools_first: bool = False,
        zero_init: bool = False,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        inner = outputs // 4 if bottleneck else outputs
        # (kernel size, stride, channels) of each convolution
        shapes = ((1, 1, inner), (3, stride, inner), (1, 1, outputs)) if bottleneck else _plain(stride, outputs)
        if groups < 1 or any(channels % groups for channels in (inputs, inner, outputs)):
            raise UserError(f"groups={groups} does not divide {inputs}, {inner} and {outputs} channels: use 1 or 2.")
        previous = inputs
        for index, (size, step, channels) in enumerate(shapes, start=1):
            setattr(
                self, f"conv{index}", Conv(previous, channels, size, stride=step, groups=groups, dtype=dtype, rngs=rngs)
            )
            setattr(self, f"bn{index}", BatchNorm(channels))
            previous = channels
        if zero_init:
            norm = getattr(self, f"bn{len(shapes)}")
            norm.scale[...] = jnp.zeros_like(norm.scale[...])
        project = [] if inputs == outputs else [Conv(inputs, outputs, dtype=dtype, rngs=rngs), BatchNorm(outputs)]
        self.downsample = nnx.List([*([_Pool()] if stride > 1 else []), *project])
        self.shapes, self.groups, self.inputs, self.outputs = shapes, groups, inputs, outputs
        self.stride, self.last_relu, self.pools_first, self.projects = stride, last_relu, pools_first, bool(project)

    def __call__(
        self, x: Float[Array, "b h w i"], mask: Float[Array, "b m k g"] | None = None, *, train: bool = False
    ) -> Float[Array, "b H W o"]:
        """Runs the block.

        Args:
          mask: of cells and groups of channels, 1 = compute.
        """
        if self.pools_first:
            x = average_pool(x)
        y, shortcut = x, x
        for index in range(1, len(self.shapes) + 1):
            if mask is not None:
                y = y * on_map(mask, (y.shape[1], y.shape[2]), y.shape[3]).astype(y.dtype)
            y = getattr(self, f"bn{index}")(getattr(self, f"conv{index}")(y), train=train)
            if index < len(self.shapes):
                y = jax.nn.relu(y)
        for layer in self.downsample:
            shortcut = layer(shortcut, train=train) if isinstance(layer, BatchNorm | _Pool) else layer(shortcut)
        total = y + shortcut
        return jax.nn.relu(total) if self.last_relu else total

    def side(self, side: int) -> int:
        """The side of the output."""
        side = _half(side) if self.pools_first else side
        return _half(side) if self.stride > 1 else side

    def macs(self, side: int) -> tuple[int, int]:
        """Multiply-accumulates that do not depend on a mask, and those that are proportional to its density.

        Counts as the published code: pooling has nine a value, also where a shortcut that projects does not pool.
        """
        entering = _half(side) if self.pools_first else side
        always = 9 * self.inputs * entering**2 if self.pools_first else 0
        leaving, previous, maskable = self.side(side), self.inputs, 0
        places = entering**2
        for size, stride, channels in self.shapes:
            places = leaving**2 if stride > 1 else places
            maskable += previous * channels * size**2 * places // self.groups
            previous = channels
        if self.projects:
            always += self.inputs * self.outputs * leaving**2
        return always, maskable

    def pool_macs(self, side: int) -> int:
        """Multiply-accumulates of the shortcut's pooling in the published count, which unmasked blocks have."""
        return 9 * self.inputs * self.side(side) ** 2 if self.stride > 1 or self.projects else 0


class MaskGenerator(nnx.Module):
    """Decides for each cell and each group of channels of a map whether the other branch refines it.

    Args:
      channels: of the map.
      groups: of consecutive channels; each decides from its own.
      mask_size: cells along a side.
    """

    def __init__(self, channels: int, groups: int, mask_size: int, *, dtype: Any = None, rngs: nnx.Rngs):
        width = groups * _GATE_WIDTH
        common = {"groups": groups, "dtype": dtype, "rngs": rngs}
        self.conv3x3_gs = nnx.List([Conv(channels, width, 3, **common), BatchNorm(width)])
        self.fc_gs = Conv(width, 2 * groups, use_bias=True, **common)
        for layer in (self.conv3x3_gs[0], self.fc_gs):
            layer.kernel[...] = _GATE_STD * jax.random.normal(rngs.params(), layer.kernel.shape, jnp.float32)
        self.fc_gs.bias[...] = jnp.tile(jnp.array([_SKIP_BIAS, _REFINE_BIAS]), groups)
        self.channels, self.groups, self.mask_size = channels, groups, mask_size

    def __call__(
        self, x: Float[Array, "b h w c"], draws: Draws, temperature: float | Array, *, train: bool = False
    ) -> Gate:
        """The decisions."""
        conv, norm = self.conv3x3_gs
        pooled = adaptive_average(jax.nn.relu(norm(conv(x), train=train)), self.mask_size)
        logits = self.fc_gs(pooled).astype(jnp.float32).reshape(*pooled.shape[:3], self.groups, 2)
        return decide(logits, computes=REFINES, noise=draws.next(logits.shape), temperature=temperature)

    def macs(self, side: int) -> int:
        """Multiply-accumulates on a map of this side."""
        width, places = self.groups * _GATE_WIDTH, side**2
        last = width * 2 * self.mask_size**2  # each group on its own: width · 2·groups / groups
        return self.channels * width * 9 * places // self.groups + width * places + last


class StageMacs(NamedTuple):
    """Multiply-accumulates of a stage.

    Attributes:
      fixed: without the masked convolutions.
      masked: of each refining block's convolutions, if all of them is refined.
      side: of the map that leaves.
    """

    fixed: int
    masked: list[int]
    side: int


class SarModule(nnx.Module):
    """A stage: a base branch at half the resolution, a refining branch at the full one, and a block that fuses them.

    Args:
      blocks: of the stage, the fusing one included.
      stride: of the fusing block.
      groups: of channels that are refined or not.
      mask_size: cells along a side of a mask.
      alpha: the base branch has the outputs divided by this as channels.
      beta: the refining branch has the outputs times this as channels.
      base_scale: 2, or 4: a further pooling before the base branch.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        blocks: int,
        *,
        stride: int,
        bottleneck: bool,
        groups: int = 1,
        mask_size: int = 7,
        alpha: int = 1,
        beta: float = 1,
        base_scale: int = 2,
        zero_init: bool = False,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        narrow, wide, count = outputs // alpha, int(outputs * beta), blocks - 1
        common = {"dtype": dtype, "rngs": rngs}
        base, refining, gates = [], [], []
        for index in range(count):
            first, last = index == 0, 0 < index == count - 1
            base.append(
                BranchBlock(
                    inputs if first else narrow,
                    narrow,
                    stride=2 if first else 1,
                    bottleneck=bottleneck,
                    last_relu=not last or alpha > 1,
                    pools_first=first and base_scale == 4,
                    zero_init=zero_init,
                    **common,
                )
            )
            refining.append(
                BranchBlock(
                    inputs if first else wide,
                    wide,
                    bottleneck=bottleneck,
                    groups=groups,
                    last_relu=not last or beta > 1,
                    **common,
                )
            )
            gates.append(MaskGenerator(narrow, groups, mask_size, **common))
        self.mask_gen, self.base_module, self.refine_module = nnx.List(gates), nnx.List(base), nnx.List(refining)
        project = lambda old: nnx.List([] if old == outputs else [Conv(old, outputs, **common), BatchNorm(outputs)])
        self.base_transform, self.refine_transform = project(narrow), project(wide)
        self.fusion = nnx.List(
            [BranchBlock(outputs, outputs, stride=stride, bottleneck=bottleneck, zero_init=zero_init, **common)]
        )
        self.narrow, self.wide, self.outputs = narrow, wide, outputs

    def __call__(
        self, x: Float[Array, "b h w i"], draws: Draws, temperature: float | Array = 1.0, *, train: bool = False
    ) -> tuple[Float[Array, "b H W o"], list[Gate]]:
        """Runs the stage: its map, and the decisions of each block."""
        coarse, fine, gates = x, x, []
        for base, refine, gate in zip(self.base_module, self.refine_module, self.mask_gen, strict=True):
            coarse = base(coarse, train=train)
            gates.append(gate(coarse, draws, temperature, train=train))
            fine = refine(fine, gates[-1].open, train=train)
        coarse = _projected(self.base_transform, coarse, train=train)
        fine = _projected(self.refine_transform, fine, train=train)
        total = resize(coarse, (fine.shape[1], fine.shape[2]), "nearest") + fine
        return self.fusion[0](jax.nn.relu(total), train=train), gates

    def macs(self, side: int) -> StageMacs:
        """Multiply-accumulates for a map of this side."""
        fixed, masked, coarse = 0, [], side
        for base, refine, gate in zip(self.base_module, self.refine_module, self.mask_gen, strict=True):
            fixed += sum(base.macs(coarse)) + base.pool_macs(coarse)
            coarse = base.side(coarse)
            always, maskable = refine.macs(side)
            fixed += gate.macs(coarse) + always
            masked.append(maskable)
        fixed += self.narrow * self.outputs * coarse**2 if len(self.base_transform) else 0
        fixed += self.wide * self.outputs * side**2 if len(self.refine_transform) else 0
        fusion = self.fusion[0]
        return StageMacs(fixed + sum(fusion.macs(side)) + fusion.pool_macs(side), masked, fusion.side(side))


def _plain(stride: int, outputs: int) -> tuple[tuple[int, int, int], ...]:
    return ((3, stride, outputs), (3, 1, outputs))


def _half(side: int) -> int:
    return -(-side // 2)


def _projected(layers: Sequence[Any], x: Array, *, train: bool) -> Array:
    if not layers:
        return x
    conv, norm = layers
    return norm(conv(x), train=train)
