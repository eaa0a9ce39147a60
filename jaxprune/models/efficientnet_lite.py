"""EfficientNet-Lite: EfficientNet without squeeze-and-excitation, with ReLU6 (Tan and Le, 2019; Liu, 2020).

As trained in TensorFlow: padding is "SAME", and the epsilon of the norms is 1e-3.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.models.convnet import ConvNet
from jaxprune.nn import BatchNorm, Conv, Linear
from jaxprune.nn.images import require_float

# Per stage: blocks, kernel size, stride of the first block, expansion, channels.
Stage = tuple[int, int, int, int, int]
LITE0: tuple[Stage, ...] = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
EPS = 1e-3
TINY = {"stages": ((1, 3, 1, 1, 8), (1, 3, 2, 2, 8)), "stem": 8, "features": 16}


def variants() -> dict[str, dict[str, Any]]:
    """Returns {name: constructor arguments}."""
    return {"efficientnet_lite": {}, "efficientnet_lite0": {"stages": LITE0}}


class Separable(nnx.Module):
    """A depth-wise and a point-wise convolution, with a shortcut where shapes match."""

    def __init__(self, inputs: int, outputs: int, kernel_size: int, stride: int, *, dtype: Any = None, rngs: nnx.Rngs):
        common = {"padding": "SAME", "dtype": dtype, "rngs": rngs}
        self.conv_dw = Conv(inputs, inputs, kernel_size, stride=stride, depthwise=True, **common)
        self.bn1 = BatchNorm(inputs, eps=EPS)
        self.conv_pw = Conv(inputs, outputs, **common)
        self.bn2 = BatchNorm(outputs, eps=EPS)
        self.shortcut = stride == 1 and inputs == outputs

    def __call__(self, x: Float[Array, "b h w i"], *, train: bool = False) -> Float[Array, "b H W o"]:
        y = jax.nn.relu6(self.bn1(self.conv_dw(x), train=train))
        y = self.bn2(self.conv_pw(y), train=train)
        return x + y if self.shortcut else y


class InvertedResidual(nnx.Module):
    """A point-wise expansion, a depth-wise convolution, and a point-wise projection."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel_size: int,
        stride: int,
        expansion: int,
        *,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        common = {"padding": "SAME", "dtype": dtype, "rngs": rngs}
        wide = inputs * expansion
        self.conv_pw = Conv(inputs, wide, **common)
        self.bn1 = BatchNorm(wide, eps=EPS)
        self.conv_dw = Conv(wide, wide, kernel_size, stride=stride, depthwise=True, **common)
        self.bn2 = BatchNorm(wide, eps=EPS)
        self.conv_pwl = Conv(wide, outputs, **common)
        self.bn3 = BatchNorm(outputs, eps=EPS)
        self.shortcut = stride == 1 and inputs == outputs

    def __call__(self, x: Float[Array, "b h w i"], *, train: bool = False) -> Float[Array, "b H W o"]:
        y = jax.nn.relu6(self.bn1(self.conv_pw(x), train=train))
        y = jax.nn.relu6(self.bn2(self.conv_dw(y), train=train))
        y = self.bn3(self.conv_pwl(y), train=train)
        return x + y if self.shortcut else y


class EfficientNetLite(ConvNet):
    """EfficientNet-Lite.

    Args:
      num_classes: 0 leaves out the classifier.
      stages: (blocks, kernel size, stride of the first block, expansion, channels) of each stage.
      stem: channels of the first convolution.
      features: channels of the last feature map.
      dtype: compute dtype; parameters stay float32.
    """

    mean: ClassVar[tuple[float, ...]] = (127 / 255,) * 3
    std: ClassVar[tuple[float, ...]] = (128 / 255,) * 3
    classifier: Any = None

    def __init__(
        self,
        *,
        num_classes: int = 1000,
        stages: tuple[Stage, ...] = LITE0,
        stem: int = 32,
        features: int = 1280,
        in_chans: int = 3,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        self.num_classes, self.dtype = num_classes, dtype
        self.conv_stem = Conv(in_chans, stem, 3, stride=2, padding="SAME", dtype=dtype, rngs=rngs)
        self.bn1 = BatchNorm(stem, eps=EPS)
        blocks, inputs = [], stem
        for count, kernel_size, first_stride, expansion, outputs in stages:
            stage = []
            for index in range(count):
                stride = first_stride if index == 0 else 1
                common = {"dtype": dtype, "rngs": rngs}
                if expansion == 1:
                    stage.append(Separable(inputs, outputs, kernel_size, stride, **common))
                else:
                    stage.append(InvertedResidual(inputs, outputs, kernel_size, stride, expansion, **common))
                inputs = outputs
            blocks.append(nnx.List(stage))
        self.blocks = nnx.List(blocks)
        self.conv_head = Conv(inputs, features, dtype=dtype, rngs=rngs)
        self.bn2 = BatchNorm(features, eps=EPS)
        self.classifier = nnx.data(Linear(features, num_classes, rngs=rngs) if num_classes else None)

    def forward_features(self, images, *, train: bool = False) -> Float[Array, "b h w d"]:
        require_float(images, 4)
        x = images.astype(self.dtype or jnp.float32)
        x = jax.nn.relu6(self.bn1(self.conv_stem(x), train=train))
        for stage in self.blocks:
            for block in stage:
                x = block(x, train=train)
        return jax.nn.relu6(self.bn2(self.conv_head(x), train=train))


NETWORK = EfficientNetLite
