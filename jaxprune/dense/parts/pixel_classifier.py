"""The last layer of a head: one linear classifier for every place of a map."""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.nn import Linear
from jaxprune.nn.dropout import apply_dropout

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
        """Returns the logits.

        Raises:
          UserError: it drops channels in training, and there is no key.
        """
        if train and self.dropout and key is None:
            raise UserError(
                f"A head with dropout={self.dropout} needs a key in training: pass key=jax.random.key(…), or dropout=0."
            )
        x = apply_dropout(x, self.dropout, key if train else None, shared_axes=(1, 2))
        return self.linear(x).astype("float32")
