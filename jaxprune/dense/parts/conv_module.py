"""A convolution without bias, batch normalisation and ReLU, as in mmsegmentation's heads; and dropout of channels."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.nn import BatchNorm, Conv


class ConvModule(nnx.Module):
    """Convolution, BatchNorm (eps 1e-5, momentum 0.1), ReLU; the weights start as normal, fan-out, ReLU's gain."""

    def __init__(self, in_features: int, out_features: int, kernel_size: int = 1, *, dtype: Any = None, rngs: nnx.Rngs):
        self.conv = Conv(in_features, out_features, kernel_size, dtype=dtype, rngs=rngs)
        self.bn = BatchNorm(out_features)

    def __call__(self, x: Float[Array, "b h w i"], *, train: bool = False) -> Float[Array, "b h w o"]:
        return jax.nn.relu(self.bn(self.conv(x), train=train))


def channel_dropout(x: Float[Array, "b h w c"], rate: float, key: PRNGKeyArray | None) -> Float[Array, "b h w c"]:
    """Sets whole channels of each image to zero, and scales the others by 1 / (1 - rate).

    Raises:
      UserError: there is no key.
    """
    if not rate:
        return x
    if key is None:
        raise UserError(
            f"A head with dropout={rate} needs a key in training: pass key=jax.random.key(…), or dropout=0."
        )
    kept = jax.random.bernoulli(key, 1 - rate, (x.shape[0], 1, 1, x.shape[3]))
    return jnp.where(kept, x / (1 - rate), jnp.zeros((), x.dtype))
