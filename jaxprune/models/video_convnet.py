"""The base of convolutional video networks: bottlenecks in stages, by pytorchvideo's names."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.models.convnet import ConvNet
from jaxprune.nn import BatchNorm, Conv3d
from jaxprune.nn.tensor_rules import Rule, batch_norm, convolution_3d, convolution_3d_back, linear, linear_back
from jaxprune.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing

MEAN, STD = (0.45,) * 3, (0.225,) * 3
# Tags of published files: who trained them, and on which data.
PYTORCHVIDEO, MMACTION2 = "pytorchvideo_k400", "mmaction2_k400"


def prepared_as(size: int, short_side: int, frames: tuple[int, int], *, imagenet: bool = False) -> Preprocessing:
    """How clips are prepared: the shorter side resized to `short_side` pixels, then a centre crop of `size`.

    Args:
      frames: (number of frames of a clip, their stride in the video).
    """
    pixels = (IMAGENET_MEAN, IMAGENET_STD) if imagenet else (MEAN, STD)
    return Preprocessing(
        (size, size),
        crop_pct=size / short_side,
        interpolation="bilinear",
        mean=pixels[0],
        std=pixels[1],
        num_frames=frames[0],
        frame_stride=frames[1],
    )


class SqueezeExcite(nnx.Module):
    """Scales each channel of a clip by a function of the means of all channels (Hu et al., 2018)."""

    def __init__(self, channels: int, width: int, *, dtype: Any = None, rngs: nnx.Rngs):
        self.reduce = Conv3d(channels, width, use_bias=True, dtype=dtype, rngs=rngs)
        self.expand = Conv3d(width, channels, use_bias=True, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "b t h w c"]) -> Float[Array, "b t h w c"]:
        # A clip has many values, hence a mean in float32.
        mean = x.mean((1, 2, 3), keepdims=True, dtype=jnp.promote_types(x.dtype, jnp.float32)).astype(x.dtype)
        return x * jax.nn.sigmoid(self.expand(jax.nn.relu(self.reduce(mean))))


class Bottleneck(nnx.Module):
    """Convolutions a, b and c with norms, and a shortcut; b has the stride.

    Args:
      inner: channels between the convolutions.
      kernel_a, kernel_b: (frames, side) of the first two; the third is point-wise.
      depthwise: whether b is depth-wise.
      se_width: hidden channels of the squeeze-and-excitation after b; 0 leaves it out.
      swish: use Swish instead of ReLU after b.
      shortcut_norm: whether a shortcut with a convolution has a norm.
    """

    def __init__(
        self,
        inputs: int,
        inner: int,
        outputs: int,
        *,
        kernel_a: tuple[int, int] = (1, 1),
        kernel_b: tuple[int, int] = (1, 3),
        stride: int = 1,
        depthwise: bool = False,
        se_width: int = 0,
        swish: bool = False,
        shortcut_norm: bool = True,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        common = {"dtype": dtype, "rngs": rngs}
        self.conv_a, self.norm_a = Conv3d(inputs, inner, kernel_a, **common), BatchNorm(inner)
        self.conv_b = Conv3d(inner, inner, kernel_b, stride=stride, depthwise=depthwise, **common)
        self.norm_b = BatchNorm(inner)
        self.se = nnx.data(SqueezeExcite(inner, se_width, **common) if se_width else None)
        self.conv_c, self.norm_c = Conv3d(inner, outputs, **common), BatchNorm(outputs)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nnx.data(Conv3d(inputs, outputs, stride=stride, **common) if changes else None)
        self.shortcut_norm = nnx.data(BatchNorm(outputs) if changes and shortcut_norm else None)
        self.swish = swish

    def __call__(self, x: Float[Array, "b t h w i"], *, train: bool = False) -> Float[Array, "b t H W o"]:
        y = jax.nn.relu(self.norm_a(self.conv_a(x), train=train))
        y = self.norm_b(self.conv_b(y), train=train)
        y = y if self.se is None else self.se(y)
        y = self.norm_c(self.conv_c(jax.nn.silu(y) if self.swish else jax.nn.relu(y)), train=train)
        shortcut = x if self.shortcut is None else self.shortcut(x)
        if self.shortcut_norm is not None:
            shortcut = self.shortcut_norm(shortcut, train=train)
        return jax.nn.relu(y + shortcut)


class VideoConvNet(ConvNet):
    """A convolutional classifier of normalised clips (b, frames, height, width, c).

    Attributes:
      clip_size: (frames, height, width) to which PaPr resizes clips for this network.
      any_length: whether a clip of that width keeps its number of frames.
    """

    mean: ClassVar[tuple[float, ...]] = MEAN
    std: ClassVar[tuple[float, ...]] = STD
    clip_size: tuple[int, int, int]
    any_length: ClassVar[bool] = False
    stages: Any

    def expected(self, sides: tuple[int, ...]) -> tuple[int, ...]:
        """The size (frames, height, width) at which this network, as PaPr's proposal, sees clips of size `sides`.

        As in the published code, only the width and the number of frames are compared.
        """
        frames, _, width = self.clip_size
        fits = sides[2] == width and (self.any_length or sides[0] == frames)
        return sides if fits else self.clip_size

    def through_stages(self, x: Float[Array, "b t h w i"], *, train: bool) -> Float[Array, "b t H W o"]:
        for stage in self.stages:
            for block in stage:
                x = block(x, train=train)
        return x


def conv_rule(published: str, path: str) -> Rule:
    """The rule for the kernel of a `Conv3d`, from its published name to ours."""
    return Rule(f"{published}.weight", f"{path}.kernel", convolution_3d, convolution_3d_back)


def linear_rules(published: str, path: str) -> tuple[Rule, ...]:
    """The rules for a linear layer, from its published name to ours."""
    kernel = Rule(f"{published}.weight", f"{path}.kernel", linear, linear_back)
    return kernel, Rule(f"{published}.bias", f"{path}.bias")


def stage_rules(number: int, norm_b: str = "norm_b") -> tuple[Rule, ...]:
    """The rules for the blocks of a stage, counted from 0.

    Args:
      norm_b: name of the norm after the second convolution.
    """
    published, path = f"blocks.{number + 1}.res_blocks.{{any}}", f"stages.{number}.{{any}}"
    convs = {**{f"branch2.conv_{letter}": f"conv_{letter}" for letter in "abc"}, "branch1_conv": "shortcut"}
    norms = {"branch2.norm_a": "norm_a", f"branch2.{norm_b}": "norm_b", "branch2.norm_c": "norm_c"}
    squeezing = {"branch2.norm_b.1.block.0": "se.reduce", "branch2.norm_b.1.block.2": "se.expand"}
    return (
        *(
            conv_rule(f"{published}.{name}", f"{path}.{attribute}")
            for name, attribute in {**convs, **squeezing}.items()
        ),
        *(Rule(f"{published}.{name}.bias", f"{path}.{attribute}.bias") for name, attribute in squeezing.items()),
        *(
            rule
            for name, attribute in {**norms, "branch1_norm": "shortcut_norm"}.items()
            for rule in batch_norm(f"{published}.{name}", f"{path}.{attribute}")
        ),
    )
