"""A fully convolutional head (Long et al., 2015) on the last map of any host."""

from collections.abc import Sequence
from typing import Any

from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.dense.parts.base import Segmenter, map_features
from jaxprune.dense.parts.fcn_head import FCNHead
from jaxprune.dense.parts.published import HEAD
from jaxprune.nn import Host
from jaxprune.nn.tensor_rules import within


class FCN(Segmenter):
    """3×3 convolutions with BatchNorm and ReLU on one map, and a pixel classifier.

    >>> import jax.numpy as jnp, jaxprune
    >>> from flax import nnx
    >>> sizes = dict(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2)
    >>> seg = jaxprune.dense.create("fcn", encoder="vit", num_classes=5, features=8, **sizes, rngs=nnx.Rngs(0))
    >>> seg(jnp.zeros((1, 32, 32, 3))).shape
    (1, 32, 32, 5)

    Args:
      index: the host's intermediate that is read.
      features, num_convs, dropout: see `FCNHead`.
    """

    published_rules = within("decode_head.", "head.", HEAD)

    def __init__(
        self,
        encoder: Host,
        *,
        num_classes: int = 150,
        index: int = -1,
        features: int = 256,
        num_convs: int = 1,
        dropout: float = 0.1,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        super().__init__(encoder, num_classes, (index,))
        (width,) = map_features(encoder, self.indices)
        options: Any = {"features": features, "num_convs": num_convs, "dropout": dropout, "dtype": dtype}
        self.head = FCNHead(width, num_classes, **options, rngs=rngs)

    def decode(
        self, maps: Sequence[Float[Array, "b _ _ _"]], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> dict[str, Float[Array, "b _ _ k"]]:
        """The logits at the size of the map."""
        return {"decode": self.head(maps[-1], train=train, key=key)}
