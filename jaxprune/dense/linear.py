"""A linear head on normalised maps, as DINOv2 (Oquab et al., 2024) evaluates frozen features."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.dense.parts.base import Segmenter, map_features
from jaxprune.dense.parts.pixel_classifier import PixelClassifier
from jaxprune.nn import BatchNorm, Host
from jaxprune.nn.tensor_rules import Rule, batch_norm, pointwise, pointwise_back
from jaxprune.ops.resize import resize


class LinearHead(Segmenter):
    """BatchNorm and one linear classifier on the last map, or on several maps joined by channels.

    The maps are read after the host's final norm, as published.

    >>> import jax.numpy as jnp, jaxprune
    >>> from flax import nnx
    >>> sizes = dict(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2)
    >>> seg = jaxprune.dense.create("linear", encoder="vit", num_classes=5, **sizes, rngs=nnx.Rngs(0))
    >>> seg(jnp.zeros((1, 32, 32, 3))).shape
    (1, 32, 32, 5)

    Args:
      indices: the host's intermediates; maps of another size are resized to the first, bilinear.
      dropout: of channels before the classifier, in training.
    """

    final_norm = True
    published_rules = (
        Rule("decode_head.conv_seg.weight", "classifier.linear.kernel", pointwise, pointwise_back),
        Rule("decode_head.conv_seg.bias", "classifier.linear.bias"),
        *batch_norm("decode_head.bn", "bn"),
    )

    def __init__(
        self,
        encoder: Host,
        *,
        num_classes: int = 150,
        indices: Sequence[int] = (-1,),
        dropout: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        super().__init__(encoder, num_classes, indices)
        width = sum(map_features(encoder, self.indices))
        self.bn = BatchNorm(width)
        self.classifier = PixelClassifier(width, num_classes, dropout=dropout, dtype=dtype, rngs=rngs)

    def decode(
        self, maps: Sequence[Float[Array, "b _ _ _"]], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> dict[str, Float[Array, "b _ _ k"]]:
        """The logits at the size of the first map."""
        shape = (maps[0].shape[1], maps[0].shape[2])
        joined = jnp.concatenate([resize(x, shape, "bilinear") for x in maps], axis=-1)
        return {"decode": self.classifier(self.bn(joined, train=train), train=train, key=key)}
