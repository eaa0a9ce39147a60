"""Tokens to token: overlapping windows of an image, aggregated twice by Performers (T2T-ViT, Yuan et al., 2021)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.linear import Linear, normal_02
from jaxprune.nn.mlp import Mlp
from jaxprune.nn.norm import LayerNorm
from jaxprune.nn.params import Fixed
from jaxprune.nn.tensor_rules import Rule, linear, linear_back

_EPS = 1e-8  # of the Performer's normaliser
Window = tuple[int, int, int]  # kernel, stride, padding
_AGGREGATION: Window = (3, 2, 1)


def windows_of(maps: Float[Array, "b h w c"], window: Window) -> Float[Array, "b i j f"]:
    """Returns the windows of maps with zero padding, each flat in the order channel, row, column.

    >>> windows_of(jnp.arange(4.0).reshape(1, 2, 2, 1), (3, 2, 1))[0, 0, 0].tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 2.0, 3.0]
    """
    kernel, stride, padding = window
    padded = jnp.pad(maps, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    starts = [stride * np.arange(outputs(side, window)) for side in maps.shape[1:3]]
    rows, columns = (start[:, None] + np.arange(kernel) for start in starts)
    cut = padded[:, rows][:, :, :, columns]  # b, i, row, j, column, c
    cut = cut.transpose(0, 1, 3, 5, 2, 4)
    return cut.reshape(*cut.shape[:3], -1)


def outputs(side: int, window: Window) -> int:
    """Returns the number of windows along a side."""
    kernel, stride, padding = window
    return (side + 2 * padding - kernel) // stride + 1


class _Performer(nnx.Module):
    """A block of one head with linear attention by positive random features (Choromanski et al., 2021)."""

    def __init__(self, dim: int, width: int, *, features: int, kernel_init: Any, dtype: Any, rngs: nnx.Rngs):
        common = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.norm1 = LayerNorm(dim, eps=1e-5)
        self.kqv = Linear(dim, 3 * width, **common)
        self.proj = Linear(width, width, **common)
        self.norm2 = LayerNorm(width, eps=1e-5)
        self.mlp = Mlp(width, width, **common)
        directions = jax.nn.initializers.orthogonal(features**0.5)
        self.directions = Fixed(directions(rngs.params(), (features, width), jnp.float32))

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n e"]:
        k, q, v = jnp.split(self.kqv(self.norm1(x)), 3, axis=-1)
        keys, queries, values = self._features(k), self._features(q), v.astype(jnp.float32)
        gathered = jnp.einsum("bnm,bme->bne", queries, jnp.einsum("bnm,bne->bme", keys, values))
        total = (queries * keys.sum(1, keepdims=True)).sum(-1, keepdims=True)
        tokens = v + self.proj((gathered / (total + _EPS)).astype(v.dtype))
        return tokens + self.mlp(self.norm2(tokens))

    def _features(self, x: Float[Array, "b n e"]) -> Float[Array, "b n m"]:
        """exp(w·x − |x|²/2) / √m for the m directions w, in float32."""
        wide, directions = x.astype(jnp.float32), self.directions[...]
        exponents = wide @ directions.T - jnp.square(wide).sum(-1, keepdims=True) / 2
        return jnp.exp(exponents) * len(directions) ** -0.5

    def flops(self, tokens: int) -> int:
        layers = (self.kqv, self.proj, self.mlp.fc1, self.mlp.fc2)
        # Features of queries and keys, keys times values, queries times their product.
        return sum(linear_flops(layer, tokens) for layer in layers) + 4 * tokens * math.prod(self.directions.shape)


class TokensToToken(nnx.Module):
    """Images to tokens: windows, a Performer, windows of its map, a Performer, windows of its map, a linear layer.

    Args:
      img_size: side of the square images in pixels.
      window: (kernel, stride, padding) of the first windows; the others are (3, 2, 1).
      dim: width of the tokens.
      token_dim: width of the Performers, which have half as many random features.
    """

    def __init__(
        self,
        img_size: int,
        window: Window,
        dim: int,
        *,
        token_dim: int = 64,
        in_chans: int = 3,
        kernel_init: Any = normal_02,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        common = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.window = window
        first = outputs(img_size, window)
        second = outputs(first, _AGGREGATION)
        self.sides = (first, second, outputs(second, _AGGREGATION))
        flat, features = _AGGREGATION[0] ** 2 * token_dim, token_dim // 2
        self.attention1 = _Performer(window[0] ** 2 * in_chans, token_dim, features=features, **common)
        self.attention2 = _Performer(flat, token_dim, features=features, **common)
        self.project = Linear(flat, dim, **common)

    def __call__(self, images: Float[Array, "b H W c"]) -> Float[Array, "b n d"]:
        """The tokens in raster order."""
        b, window, maps = images.shape[0], self.window, images
        for side, attention in zip(self.sides, (self.attention1, self.attention2), strict=False):
            tokens = attention(windows_of(maps, window).reshape(b, side * side, -1))
            maps, window = tokens.reshape(b, side, side, -1), _AGGREGATION
        return self.project(windows_of(maps, window).reshape(b, self.sides[-1] ** 2, -1))

    def flops(self) -> int:
        """Multiply-accumulates of one image."""
        first, second, last = (side * side for side in self.sides)
        return self.attention1.flops(first) + self.attention2.flops(second) + linear_flops(self.project, last)


RULES = (
    Rule("{any}.w", "{any}.directions"),
    *(
        rule
        for number, layer in (("0", "fc1"), ("2", "fc2"))
        for rule in (
            Rule(f"{{any}}.mlp.{number}.weight", f"{{any}}.mlp.{layer}.kernel", linear, linear_back),
            Rule(f"{{any}}.mlp.{number}.bias", f"{{any}}.mlp.{layer}.bias"),
        )
    ),
)
