"""MobileOne: branches in training, fused into one convolution for inference (Vasu et al., 2023)."""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.models.convnet import ConvNet
from jaxprune.nn import BatchNorm, Conv, Linear
from jaxprune.nn.images import require_float
from jaxprune.nn.params import unfilled, variables

WIDTHS = {
    "s0": (0.75, 1.0, 1.0, 2.0),
    "s1": (1.5, 1.5, 2.0, 2.5),
    "s2": (1.5, 2.0, 2.5, 4.0),
    "s3": (2.0, 2.5, 3.0, 4.0),
    "s4": (3.0, 3.5, 3.5, 4.0),
}
TINY = {"widths": (0.125, 0.125, 0.125, 0.125), "blocks": (1, 1, 1, 1), "branches": 2}


def variants() -> dict[str, dict[str, Any]]:
    """Returns {name: constructor arguments}."""
    named = {
        f"mobileone_{size}": {"widths": widths, "branches": 4 if size == "s0" else 1, "se": size == "s4"}
        for size, widths in WIDTHS.items()
    }
    return {"mobileone": {}, **named}


class ConvNorm(nnx.Module):
    """A convolution and its norm: one branch."""

    def __init__(self, inputs: int, outputs: int, kernel_size: int, *, rngs: nnx.Rngs, **options: Any):
        self.conv = Conv(inputs, outputs, kernel_size, rngs=rngs, **options)
        self.bn = BatchNorm(outputs)

    def __call__(self, x: Float[Array, "b h w i"], *, train: bool = False) -> Float[Array, "b H W o"]:
        return self.bn(self.conv(x), train=train)


class SqueezeExcite(nnx.Module):
    """Scales each channel by a function of the means of all channels (Hu et al., 2018)."""

    def __init__(self, channels: int, *, dtype: Any = None, rngs: nnx.Rngs):
        self.reduce = Conv(channels, int(channels * 0.0625), use_bias=True, dtype=dtype, rngs=rngs)
        self.expand = Conv(int(channels * 0.0625), channels, use_bias=True, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        mean = x.mean((1, 2), keepdims=True)
        return x * jax.nn.sigmoid(self.expand(jax.nn.relu(self.reduce(mean))))


class MobileOneBlock(nnx.Module):
    """`ReLU(SE(Σ branches))`; the branches are convolutions with norms, a 1×1 one, and the input through a norm.

    Args:
      fused: one convolution with a bias in place of the branches.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel_size: int,
        *,
        stride: int = 1,
        depthwise: bool = False,
        branches: int = 1,
        se: bool = False,
        fused: bool = False,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        options = {"stride": stride, "depthwise": depthwise, "dtype": dtype, "rngs": rngs}
        self.se = nnx.data(SqueezeExcite(outputs, dtype=dtype, rngs=rngs) if se else None)
        self.reparam_conv = nnx.data(Conv(inputs, outputs, kernel_size, use_bias=True, **options) if fused else None)
        unfused = not fused
        count = branches if unfused else 0
        self.rbr_conv = nnx.List([ConvNorm(inputs, outputs, kernel_size, **options) for _ in range(count)])
        scaled = unfused and kernel_size > 1
        self.rbr_scale = nnx.data(ConvNorm(inputs, outputs, 1, padding=0, **options) if scaled else None)
        skipped = unfused and inputs == outputs and stride == 1
        self.rbr_skip = nnx.data(BatchNorm(outputs) if skipped else None)

    def __call__(self, x: Float[Array, "b h w i"], *, train: bool = False) -> Float[Array, "b H W o"]:
        if self.reparam_conv is not None:
            y = self.reparam_conv(x)
        else:
            branches = [*self.rbr_conv, self.rbr_scale, self.rbr_skip]
            y = functools.reduce(operator.add, [branch(x, train=train) for branch in branches if branch is not None])
        return jax.nn.relu(y if self.se is None else self.se(y))

    def fused_weights(self) -> tuple[Float[Array, "k k i o"], Float[Array, "o"]]:
        """The kernel and bias of the one convolution that equals the sum of the branches in evaluation."""
        parts = [branch.bn.folded(branch.conv.kernel[...]) for branch in self.rbr_conv]
        shape = parts[0][0].shape
        centre = shape[0] // 2
        if self.rbr_scale is not None:
            kernel, bias = self.rbr_scale.bn.folded(self.rbr_scale.conv.kernel[...])
            parts.append((jnp.pad(kernel, ((centre, centre), (centre, centre), (0, 0), (0, 0))), bias))
        if self.rbr_skip is not None:
            # The identity: every filter of a depth-wise kernel, the diagonal of a dense one.
            tap = jnp.ones((1, shape[3])) if shape[2] == 1 else jnp.eye(shape[3])
            identity = jnp.zeros(shape).at[centre, centre].set(tap)
            parts.append(self.rbr_skip.folded(identity))
        kernels, biases = zip(*parts, strict=True)
        return functools.reduce(operator.add, kernels), functools.reduce(operator.add, biases)


class MobileOne(ConvNet):
    """MobileOne.

    Args:
      num_classes: 0 leaves out the classifier.
      widths: multipliers of the stages' 64, 128, 256 and 512 channels.
      blocks: pairs of a depth-wise and a point-wise block in each stage.
      branches: parallel convolutions in a block; the first block has one.
      se: squeeze-and-excitation in the second half of the third stage and in the last stage.
      fused: the inference form, one convolution per block; see `fuse`.
      dtype: compute dtype; parameters stay float32.
    """

    def __init__(
        self,
        *,
        num_classes: int = 1000,
        widths: tuple[float, ...] = WIDTHS["s0"],
        blocks: tuple[int, ...] = (2, 8, 10, 1),
        branches: int = 4,
        se: bool = False,
        fused: bool = False,
        in_chans: int = 3,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        self.num_classes, self.dtype, self.fused = num_classes, dtype, fused
        self.shape: tuple[tuple[str, Any], ...] = (
            *(("num_classes", num_classes), ("widths", widths), ("blocks", blocks), ("branches", branches)),
            *(("se", se), ("in_chans", in_chans), ("dtype", dtype)),
        )
        common = {"fused": fused, "dtype": dtype, "rngs": rngs}
        inputs = min(64, int(64 * widths[0]))
        self.stage0 = MobileOneBlock(in_chans, inputs, 3, stride=2, **common)
        with_se = (0, 0, blocks[2] // 2, blocks[3]) if se else (0, 0, 0, 0)
        for stage, (base, width, count) in enumerate(zip((64, 128, 256, 512), widths, blocks, strict=True)):
            outputs, layers = int(base * width), []
            for index in range(count):
                arguments = {**common, "branches": branches, "se": index >= count - with_se[stage]}
                stride = 2 if index == 0 else 1
                layers.append(MobileOneBlock(inputs, inputs, 3, stride=stride, depthwise=True, **arguments))
                layers.append(MobileOneBlock(inputs, outputs, 1, **arguments))
                inputs = outputs
            setattr(self, f"stage{stage + 1}", nnx.List(layers))
        self.linear = nnx.data(Linear(inputs, num_classes, rngs=rngs) if num_classes else None)

    @property
    def classifier(self) -> Any:
        return self.linear

    def parts(self) -> list[MobileOneBlock]:
        """The blocks in order."""
        return [self.stage0, *(block for stage in range(1, 5) for block in getattr(self, f"stage{stage}"))]

    def forward_features(self, images, *, train: bool = False) -> Float[Array, "b h w d"]:
        require_float(images, 4)
        x = images.astype(self.dtype or jnp.float32)
        for block in self.parts():
            x = block(x, train=train)
        return x


def fuse(model: MobileOne) -> MobileOne:
    """Returns the form for inference: the same function in evaluation, with one convolution a block.

    The network itself stays as it was.

    Raises:
      UserError: the network is already fused.
    """
    if model.fused:
        raise UserError("This MobileOne is already fused for inference: fuse the one that was trained.")
    fused = unfilled(lambda: MobileOne(**dict(model.shape), fused=True, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(model)
    # All blocks in one program; one by one, each shape would compile separately.
    weights = jax.jit(lambda state: [block.fused_weights() for block in nnx.merge(graph, state).parts()])(state)
    for block, (kernel, bias) in zip(fused.parts(), weights, strict=True):
        block.reparam_conv.kernel[...], block.reparam_conv.bias[...] = kernel, bias
    unfused = variables(model)
    for name, variable in variables(fused).items():
        if name in unfused:
            variable[...] = unfused[name][...]
    return fused


NETWORK = MobileOne
