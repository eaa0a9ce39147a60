"""Maps of four scales from maps of one, as in BEiT's segmentation code: 4 times and 2 times finer, equal, half."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.nn import BatchNorm
from jaxprune.nn.linear import torch_uniform

LEVELS = 4


class Upsample(nnx.Module):
    """A transposed 2×2 convolution of stride 2: every place becomes four."""

    def __init__(self, in_features: int, out_features: int | None = None, *, dtype: Any = None, rngs: nnx.Rngs):
        out = in_features if out_features is None else out_features
        start = torch_uniform(4 * out)
        self.kernel = nnx.Param(start(rngs.params(), (2, 2, in_features, out)))
        self.bias = nnx.Param(start(rngs.params(), (out,)))
        self.dtype = dtype

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b H W o"]:
        x = x.astype(self.dtype or x.dtype)
        b, h, w, _ = x.shape
        y = jnp.einsum("bhwi,klio->bhkwlo", x, self.kernel[...].astype(x.dtype))
        return y.reshape(b, 2 * h, 2 * w, -1) + self.bias[...].astype(x.dtype)[None, None, None, :]


class ViTPyramid(nnx.Module):
    """Four maps of one grid, at 4, 2, 1 and 1/2 times its sides.

    Args:
      features: channels of the maps.
      coarsest: how the last map is halved: "max" (BEiT, MAE) or "avg" (LocalMIM).
    """

    def __init__(self, features: int, *, coarsest: str = "max", dtype: Any = None, rngs: nnx.Rngs):
        up = lambda: Upsample(features, dtype=dtype, rngs=rngs)
        self.first, self.bn, self.second, self.double = up(), BatchNorm(features), up(), up()
        self.coarsest = coarsest

    def __call__(
        self, maps: Sequence[Float[Array, "b h w c"]], *, train: bool = False
    ) -> list[Float[Array, "b _ _ c"]]:
        if len(maps) != LEVELS:
            raise UserError(f"A pyramid of a ViT needs {LEVELS} maps, not {len(maps)}: choose {LEVELS} indices.")
        fine = self.second(jax.nn.gelu(self.bn(self.first(maps[0]), train=train), approximate=False))
        return [fine, self.double(maps[1]), maps[2], _halved(maps[3], self.coarsest)]


def _halved(x: Array, kind: str) -> Array:
    # The gradient of a maximum over reshaped windows is 0 / 0 where the compiler computes them twice, with rounding.
    places = (1, 2, 2, 1)
    if kind == "max":
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, places, places, "VALID")
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, places, places, "VALID") / 4


def default_indices(depth: int, levels: int = LEVELS) -> tuple[int, ...]:
    """The blocks whose maps a segmentation network reads, as published: after 1/3, 1/2, 2/3 and all of the blocks.

    >>> default_indices(12), default_indices(24)
    ((3, 5, 7, 11), (7, 11, 15, 23))
    """
    indices: list[int] = []
    for share in (1 / 3, 1 / 2, 2 / 3, 1.0)[-levels:]:
        indices.append(max(math.floor(depth * share + 1e-9) - 1, indices[-1] + 1 if indices else 0))
    return tuple(indices)
