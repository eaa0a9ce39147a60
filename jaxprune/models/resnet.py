"""ResNet, with torchvision's and timm's names and numerics (He et al., 2016; stride in the 3×3, "v1.5")."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.models.convnet import ConvNet
from jaxprune.nn import BatchNorm, Conv, Linear
from jaxprune.nn.drop_path import DropPath
from jaxprune.nn.images import require_float

DEPTHS = {
    "resnet18": (False, (2, 2, 2, 2)),
    "resnet34": (False, (3, 4, 6, 3)),
    "resnet50": (True, (3, 4, 6, 3)),
    "resnet101": (True, (3, 4, 23, 3)),
    "resnet152": (True, (3, 8, 36, 3)),
}
TINY = {"layers": (1, 1), "width": 8}


def variants() -> dict[str, dict[str, Any]]:
    """Returns {name: constructor arguments}."""
    named = {name: {"bottleneck": bottleneck, "layers": layers} for name, (bottleneck, layers) in DEPTHS.items()}
    return {"resnet": {}, **named}


class Residual(nnx.Module):
    """Two 3×3 convolutions, or a 1×1, 3×3, 1×1 bottleneck, with a shortcut.

    Args:
      drop_path: stochastic depth rate.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        stride: int,
        *,
        bottleneck: bool,
        drop_path: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        common = {"dtype": dtype, "rngs": rngs}
        outputs = width * (4 if bottleneck else 1)
        # (kernel size, stride, channels) of each convolution
        shapes = (
            ((1, 1, width), (3, stride, width), (1, 1, outputs)) if bottleneck else ((3, stride, width), (3, 1, width))
        )
        previous = inputs
        for index, (kernel_size, step, channels) in enumerate(shapes, start=1):
            setattr(self, f"conv{index}", Conv(previous, channels, kernel_size, stride=step, **common))
            setattr(self, f"bn{index}", BatchNorm(channels))
            previous = channels
        self.num_convs, self.drop_path = len(shapes), DropPath(drop_path)
        same = stride == 1 and inputs == outputs
        self.downsample: Any = nnx.List(
            [] if same else [Conv(inputs, outputs, stride=stride, **common), BatchNorm(outputs)]
        )

    def __call__(
        self, x: Float[Array, "b h w i"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> Float[Array, "b H W o"]:
        y, shortcut = x, x
        for index in range(1, self.num_convs + 1):
            y = getattr(self, f"bn{index}")(getattr(self, f"conv{index}")(y), train=train)
            if index < self.num_convs:
                y = jax.nn.relu(y)
        if len(self.downsample):
            conv, norm = self.downsample
            shortcut = norm(conv(x), train=train)
        return jax.nn.relu(self.drop_path(y, key if train else None) + shortcut)


class ResNet(ConvNet):
    """ResNet.

    Args:
      num_classes: 0 leaves out the classifier.
      bottleneck: blocks of three convolutions, the last with four times the width.
      layers: number of blocks in each of the four stages.
      width: channels of the first stage; each stage doubles them.
      dtype: compute dtype; parameters stay float32.
    """

    def __init__(
        self,
        *,
        num_classes: int = 1000,
        bottleneck: bool = True,
        layers: tuple[int, ...] = (3, 4, 6, 3),
        width: int = 64,
        in_chans: int = 3,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        if width < 1:
            raise UserError(f"width={width} is not a size: use a whole number from 1 on.")
        self.num_classes, self.dtype, self.num_stages = num_classes, dtype, len(layers)
        self.conv1 = Conv(in_chans, width, 7, stride=2, dtype=dtype, rngs=rngs)
        self.bn1 = BatchNorm(width)
        inputs = width
        for stage, count in enumerate(layers):
            blocks = []
            for index in range(count):
                stride = 2 if stage and index == 0 else 1
                blocks.append(Residual(inputs, width * 2**stage, stride, bottleneck=bottleneck, dtype=dtype, rngs=rngs))
                inputs = width * 2**stage * (4 if bottleneck else 1)
            setattr(self, f"layer{stage + 1}", nnx.List(blocks))
        self.fc = nnx.data(Linear(inputs, num_classes, rngs=rngs) if num_classes else None)

    @property
    def classifier(self) -> Any:
        return self.fc

    def forward_features(self, images, *, train: bool = False) -> Float[Array, "b h w d"]:
        require_float(images, 4)
        x = images.astype(self.dtype or jnp.float32)
        x = max_pool(jax.nn.relu(self.bn1(self.conv1(x), train=train)))
        for stage in range(self.num_stages):
            for block in getattr(self, f"layer{stage + 1}"):
                x = block(x, train=train)
        return x


def max_pool(x: Float[Array, "b h w c"]) -> Float[Array, "b H W c"]:
    """3×3 max pooling with stride 2."""
    # JAX differentiates this reduction only if it starts from minus infinity.
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))


NETWORK = ResNet
