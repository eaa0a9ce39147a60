"""The MLPs of transformer blocks: two layers with an activation, or SwiGLU."""

import functools
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.errors import unknown
from jaxprune.nn.linear import Linear, normal_02


def quick_gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """OpenAI CLIP's approximation of GELU, `x sigmoid(1.702 x)` (Hendrycks and Gimpel, 2016)."""
    return x * jax.nn.sigmoid(1.702 * x)


_GELU = functools.partial(jax.nn.gelu, approximate=False)

# By timm's names.
ACTIVATIONS = {
    "gelu": _GELU,
    "gelu_erf": _GELU,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "quick_gelu": quick_gelu,
    "silu": jax.nn.silu,
}


class Mlp(nnx.Module):
    """Linear, activation, Linear.

    Args:
      out: width of the output, by default that of the input.
      activation: a name in `ACTIVATIONS`; "gelu" is the exact one (erf).
      norm: norm of the hidden layer; None leaves it out.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        out: int | None = None,
        activation: str = "gelu",
        norm: Any = None,
        use_bias: bool = True,
        kernel_init=normal_02,
        dtype=None,
        rngs,
    ):
        if activation not in ACTIVATIONS:
            raise unknown("activation", activation, ACTIVATIONS)
        common = {"use_bias": use_bias, "kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.fc1 = Linear(dim, hidden, **common)
        self.norm = nnx.data(norm)
        self.fc2 = Linear(hidden, out or dim, **common)
        self.activation = activation

    def __call__(self, x: Float[Array, "*lead d"]) -> Float[Array, "*lead o"]:
        x = ACTIVATIONS[self.activation](self.fc1(x))
        return self.fc2(x if self.norm is None else self.norm(x))


class SwiGLU(nnx.Module):
    """`fc2(silu(gate) * value)`, where `fc1` computes gate and value in one product (Shazeer, 2020).

    Args:
      hidden: width of the gate, and of the value.
      norm: norm of the hidden layer (EVA-02); None leaves it out.
    """

    def __init__(
        self, dim: int, hidden: int, *, norm: Any = None, use_bias: bool = True, kernel_init=normal_02, dtype=None, rngs
    ):
        common = {"use_bias": use_bias, "kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.fc1 = Linear(dim, 2 * hidden, **common)
        self.norm = nnx.data(norm)
        self.fc2 = Linear(hidden, dim, **common)

    def __call__(self, x: Float[Array, "*lead d"]) -> Float[Array, "*lead d"]:
        gates_and_values = self.fc1(x)
        hidden = gates_and_values.shape[-1] // 2
        x = jax.nn.silu(gates_and_values[..., :hidden]) * gates_and_values[..., hidden:]
        return self.fc2(x if self.norm is None else self.norm(x))
