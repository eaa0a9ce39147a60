"""X3D: a small 2-D network expanded in time, width and depth (Feichtenhofer, 2020).

Names and numbers are pytorchvideo's. mmaction2's files fit too; their networks normalise every shortcut.
"""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.models.video_convnet import (
    MMACTION2,
    PYTORCHVIDEO,
    Bottleneck,
    VideoConvNet,
    conv_rule,
    linear_rules,
    prepared_as,
    stage_rules,
)
from jaxprune.nn import BatchNorm, Conv3d, Linear
from jaxprune.nn.images import require_float
from jaxprune.nn.tensor_rules import Rule, batch_norm
from jaxprune.preprocessing import Preprocessing

# pixels of a (cropped frame, shorter side before the crop)
SIZES = {"xs": (160, 182), "s": (160, 182), "m": (224, 256), "l": (312, 356)}
# (frames of a clip, their stride in the video)
FRAMES = {"xs": (4, 12), "s": (13, 6), "m": (16, 5), "l": (16, 5)}
WITH_MMACTION2 = ("s", "m")


def variants() -> dict[str, dict[str, Any]]:
    """Returns {name, with or without a tag: its constructor arguments}; 400 classes, as in Kinetics."""
    named: dict[str, dict[str, Any]] = {"x3d": {}}
    for size, (side, _) in SIZES.items():
        depth = 5.0 if size == "l" else 2.2
        arguments = {"layers": tuple(math.ceil(depth * count) for count in (1, 2, 5, 3)), "clip_size": (8, side, side)}
        named[f"x3d_{size}"] = named[f"x3d_{size}.{PYTORCHVIDEO}"] = arguments
        if size in WITH_MMACTION2:
            named[f"x3d_{size}.{MMACTION2}"] = {**arguments, "shortcut_norm": True}
    return named


def preprocessing(name: str, arguments: dict[str, Any]) -> Preprocessing:
    """Returns how the frames of clips are prepared."""
    side = arguments.get("clip_size", (8, 224, 224))[2]
    shorter = dict(SIZES.values())
    frames = FRAMES.get(name.partition(".")[0].removeprefix("x3d_"), (16, 5))
    return prepared_as(side, shorter[side] if side in shorter else round(side * 8 / 7), frames)


def squeezed(channels: int, ratio: float) -> int:
    """The hidden width of squeeze-and-excitation: a fraction of the channels, rounded to a multiple of 8.

    >>> [squeezed(channels, 1 / 16) for channels in (54, 108, 216, 432)]
    [8, 8, 16, 32]
    """
    exact = channels * ratio
    width = max(8, int(exact + 4) // 8 * 8)
    return width + 8 if width < 0.9 * exact else width


class X3D(VideoConvNet):
    """X3D.

    The number of frames is kept; five strides of 2 shrink each frame. The features are those of the last convolution,
    `conv5` in the paper. The classifier reads their mean, as on clips of the published size.

    Args:
      num_classes: 0 leaves out the classifier, and the projection before it.
      layers: number of blocks in each stage.
      width: channels of the stem and of the first stage; each stage doubles them.
      expansion: expansion of the channels inside a block.
      se_ratio: squeeze-and-excitation ratio; every other block has one, starting with the first.
      hidden: channels of the projection before the classifier.
      shortcut_norm: normalises every shortcut that has a convolution, as mmaction2 does; pytorchvideo leaves it out
        where a block keeps the number of channels.
      clip_size: see `VideoConvNet`.
      dtype: compute dtype; parameters stay float32.
    """

    any_length: ClassVar[bool] = True

    def __init__(
        self,
        *,
        num_classes: int = 400,
        layers: tuple[int, ...] = (3, 5, 11, 7),
        width: int = 24,
        expansion: float = 2.25,
        se_ratio: float = 1 / 16,
        hidden: int = 2048,
        shortcut_norm: bool = False,
        clip_size: tuple[int, int, int] = (8, 224, 224),
        in_chans: int = 3,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        self.num_classes, self.dtype, self.clip_size = num_classes, dtype, clip_size
        common = {"dtype": dtype, "rngs": rngs}
        self.conv_xy = Conv3d(in_chans, width, (1, 3), stride=2, **common)
        self.conv_t = Conv3d(width, width, (5, 1), depthwise=True, **common)
        self.norm = BatchNorm(width)
        stages, inputs = [], width
        for stage, count in enumerate(layers):
            outputs = width * 2**stage
            inner, blocks = int(expansion * outputs), []
            for index in range(count):
                blocks.append(
                    Bottleneck(
                        inputs,
                        inner,
                        outputs,
                        kernel_b=(3, 3),
                        stride=1 if index else 2,
                        depthwise=True,
                        se_width=0 if index % 2 else squeezed(inner, se_ratio),
                        swish=True,
                        shortcut_norm=shortcut_norm or inputs != outputs,
                        **common,
                    )
                )
                inputs = outputs
            stages.append(nnx.List(blocks))
        self.stages = nnx.List(stages)
        features = int(expansion * inputs)
        self.conv5, self.norm5 = Conv3d(inputs, features, **common), BatchNorm(features)
        # `open_published` infers the number of classes from the first name that networks without classes lack: the
        # head's.
        self.projection: Any = nnx.data(Conv3d(features, hidden, rngs=rngs) if num_classes else None)
        self.head: Any = nnx.data(Linear(hidden, num_classes, rngs=rngs) if num_classes else None)

    @property
    def classifier(self) -> Any:
        return self.head

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """How pytorchvideo names and lays out the weights; its `conv_t` is the spatial convolution."""
        last = f"blocks.{len(self.stages) + 1}"
        return (
            conv_rule("blocks.0.conv.conv_t", "conv_xy"),
            conv_rule("blocks.0.conv.conv_xy", "conv_t"),
            *batch_norm("blocks.0.norm", "norm"),
            *(rule for stage in range(len(self.stages)) for rule in stage_rules(stage, "norm_b.0")),
            conv_rule(f"{last}.pool.pre_conv", "conv5"),
            *batch_norm(f"{last}.pool.pre_norm", "norm5"),
            conv_rule(f"{last}.pool.post_conv", "projection"),
            *linear_rules(f"{last}.proj", "head"),
        )

    def forward_features(self, images, *, train: bool = False) -> Float[Array, "b t h w d"]:
        require_float(images, 5)
        x = images.astype(self.dtype or jnp.float32)
        x = jax.nn.relu(self.norm(self.conv_t(self.conv_xy(x)), train=train))
        return jax.nn.relu(self.norm5(self.conv5(self.through_stages(x, train=train)), train=train))

    def forward_head(self, features: Float[Array, "b *grid d"]) -> Float[Array, "b k"]:
        pooled = features.astype(jnp.float32).mean((1, 2, 3))
        if self.projection is None:
            return pooled
        return self.head(jax.nn.relu(self.projection(pooled[:, None, None, None])[:, 0, 0, 0]))


NETWORK = X3D
