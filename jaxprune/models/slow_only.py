"""The slow pathway of SlowFast networks: a ResNet whose last stages also mix frames (Feichtenhofer et al., 2019).

Names and numerics are pytorchvideo's; mmaction2's SlowOnly is the same network.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.models.resnet import DEPTHS, max_pool
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


def variants() -> dict[str, dict[str, Any]]:
    """Returns {name, with or without a tag: its constructor arguments}; 400 classes, as in Kinetics."""
    named: dict[str, dict[str, Any]] = {"slow_only": {}}
    for depth, tags in ((50, (PYTORCHVIDEO, MMACTION2)), (101, (MMACTION2,))):
        arguments = {"layers": DEPTHS[f"resnet{depth}"][1]}
        named |= {f"slow_r{depth}": arguments, **{f"slow_r{depth}.{tag}": arguments for tag in tags}}
    return named


def preprocessing(name: str, arguments: dict[str, Any]) -> Preprocessing:
    """Returns how the frames of clips are prepared; mmaction2's networks have ImageNet's mean and std."""
    side = arguments.get("clip_size", (8, 224, 224))[2]
    imagenet = name.endswith(MMACTION2) or name == "slow_r101"
    return prepared_as(side, round(side * 8 / 7), (8, 8), imagenet=imagenet)


class SlowOnly(VideoConvNet):
    """A ResNet of bottlenecks on every frame; the first convolutions of late blocks see three frames.

    Args:
      num_classes: 0 leaves out the classifier.
      layers: number of blocks in each stage.
      width: inner channels of the first stage, doubled at each stage; blocks have four times as many outside.
      frames: temporal kernel size of the first convolution of a block, for each stage.
      clip_size: see `VideoConvNet`.
      dtype: compute dtype; parameters stay float32.
    """

    def __init__(
        self,
        *,
        num_classes: int = 400,
        layers: tuple[int, ...] = (3, 4, 6, 3),
        width: int = 64,
        frames: tuple[int, ...] = (1, 1, 3, 3),
        clip_size: tuple[int, int, int] = (8, 224, 224),
        in_chans: int = 3,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        self.num_classes, self.dtype, self.clip_size = num_classes, dtype, clip_size
        common = {"dtype": dtype, "rngs": rngs}
        self.conv, self.norm = Conv3d(in_chans, width, (1, 7), stride=2, **common), BatchNorm(width)
        stages, inputs = [], width
        for stage, (count, num_frames) in enumerate(zip(layers, frames, strict=True)):
            inner, blocks = width * 2**stage, []
            for index in range(count):
                stride = 2 if stage and index == 0 else 1
                blocks.append(Bottleneck(inputs, inner, 4 * inner, kernel_a=(num_frames, 1), stride=stride, **common))
                inputs = 4 * inner
            stages.append(nnx.List(blocks))
        self.stages = nnx.List(stages)
        self.head = nnx.data(Linear(inputs, num_classes, rngs=rngs) if num_classes else None)

    @property
    def classifier(self) -> Any:
        return self.head

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """How pytorchvideo names and lays out the weights."""
        return (
            conv_rule("blocks.0.conv", "conv"),
            *batch_norm("blocks.0.norm", "norm"),
            *(rule for stage in range(len(self.stages)) for rule in stage_rules(stage)),
            *linear_rules(f"blocks.{len(self.stages) + 1}.proj", "head"),
        )

    def forward_features(self, images, *, train: bool = False) -> Float[Array, "b t h w d"]:
        require_float(images, 5)
        x = jax.nn.relu(self.norm(self.conv(images.astype(self.dtype or jnp.float32)), train=train))
        frames = max_pool(x.reshape(-1, *x.shape[2:]))
        return self.through_stages(frames.reshape(*x.shape[:2], *frames.shape[1:]), train=train)


NETWORK = SlowOnly
