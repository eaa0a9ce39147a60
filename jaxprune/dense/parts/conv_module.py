"""A convolution without bias, batch normalisation and ReLU, as in mmsegmentation's heads."""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.nn import BatchNorm, Conv


class ConvModule(nnx.Module):
    """Convolution, BatchNorm (eps 1e-5, momentum 0.1), ReLU; the weights start as normal, fan-out, ReLU's gain."""

    def __init__(self, in_features: int, out_features: int, kernel_size: int = 1, *, dtype: Any = None, rngs: nnx.Rngs):
        self.conv = Conv(in_features, out_features, kernel_size, dtype=dtype, rngs=rngs)
        self.bn = BatchNorm(out_features)

    def __call__(self, x: Float[Array, "b h w i"], *, train: bool = False) -> Float[Array, "b h w o"]:
        return jax.nn.relu(self.bn(self.conv(x), train=train))
