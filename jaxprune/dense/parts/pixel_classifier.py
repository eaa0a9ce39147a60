"""The last layer of a head: one linear classifier for every place of a map."""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.dense.parts.conv_module import channel_dropout
from jaxprune.nn import Linear

_START = jax.nn.initializers.normal(0.01)


class PixelClassifier(nnx.Module):
    """Logits of each place, after dropout of channels in training; the logits are float32.

    Args:
      dropout: probability of dropping a channel in training.
    """

    def __init__(self, features: int, num_classes: int, *, dropout: float = 0.1, dtype: Any = None, rngs: nnx.Rngs):
        self.linear = Linear(features, num_classes, kernel_init=_START, dtype=dtype, rngs=rngs)
        self.dropout = dropout

    def __call__(
        self, x: Float[Array, "b h w c"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> Float[Array, "b h w k"]:
        return self.linear(channel_dropout(x, self.dropout, key) if train else x).astype("float32")
