"""The two-layer perceptron of a transformer block."""

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.nn.linear import Linear, normal_02


class Mlp(nnx.Module):
    """Linear, exact (erf) GELU, Linear."""

    def __init__(self, dim: int, hidden: int, *, out: int | None = None, kernel_init=normal_02, dtype=None, rngs):
        self.fc1 = Linear(dim, hidden, kernel_init=kernel_init, dtype=dtype, rngs=rngs)
        self.fc2 = Linear(hidden, out or dim, kernel_init=kernel_init, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "*lead d"]) -> Float[Array, "*lead o"]:
        return self.fc2(jax.nn.gelu(self.fc1(x), approximate=False))
