"""A fully convolutional head (Long et al., 2015), as in mmsegmentation: 3×3 convolutions and a classifier."""

from typing import Any

from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.dense.parts.conv_module import ConvModule
from jaxprune.dense.parts.pixel_classifier import PixelClassifier


class FCNHead(nnx.Module):
    """`num_convs` 3×3 convolutions with BatchNorm and ReLU, and a pixel classifier.

    Args:
      in_features: channels of the map.
      features: channels of the convolutions.
      dropout: see `PixelClassifier`.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        features: int = 256,
        num_convs: int = 1,
        dropout: float = 0.1,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        widths = (in_features, *(features for _ in range(num_convs)))
        self.convs = nnx.List([ConvModule(i, features, 3, dtype=dtype, rngs=rngs) for i in widths[:-1]])
        self.classifier = PixelClassifier(widths[-1], num_classes, dropout=dropout, dtype=dtype, rngs=rngs)

    def __call__(
        self, x: Float[Array, "b h w i"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> Float[Array, "b h w k"]:
        for conv in self.convs:
            x = conv(x, train=train)
        return self.classifier(x, train=train, key=key)
