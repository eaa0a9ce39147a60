"""Normalisation of the last axis, in float32 whatever the compute dtype."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.errors import unknown


class LayerNorm(nnx.Module):
    """Normalises the last axis to zero mean and unit (biased) variance, then scales and shifts.

    Args:
      affine: whether it scales and shifts.
    """

    def __init__(self, features: int, *, eps: float = 1e-6, affine: bool = True):
        self.scale: Any = nnx.data(nnx.Param(jnp.ones((features,), jnp.float32)) if affine else None)
        self.bias: Any = nnx.data(nnx.Param(jnp.zeros((features,), jnp.float32)) if affine else None)
        self.eps = eps

    def __call__(self, x: Float[Array, "*lead d"]) -> Float[Array, "*lead d"]:
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        lead = (None,) * (x.ndim - 1)
        y = centred * jax.lax.rsqrt(variance + self.eps)
        if self.scale is not None:
            y = y * self.scale[...][*lead] + self.bias[...][*lead]
        return y.astype(x.dtype)


class RmsNorm(nnx.Module):
    """Divides the last axis by its root mean square, then scales (Zhang and Sennrich, 2019)."""

    def __init__(self, features: int, *, eps: float = 1e-6):
        self.scale = nnx.Param(jnp.ones((features,), jnp.float32))
        self.eps = eps

    def __call__(self, x: Float[Array, "*lead d"]) -> Float[Array, "*lead d"]:
        wide = x.astype(jnp.float32)
        y = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + self.eps)
        return (y * self.scale[...][*(None,) * (x.ndim - 1)]).astype(x.dtype)


NORMS = {"layer": LayerNorm, "rms": RmsNorm}


def make_norm(name: str, features: int, eps: float) -> Any:
    """Returns a norm by its name in `NORMS`."""
    if name not in NORMS:
        raise unknown("norm", name, NORMS)
    return NORMS[name](features, eps=eps)
