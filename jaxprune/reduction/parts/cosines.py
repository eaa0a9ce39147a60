"""Cosine similarities between the tokens of each image."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune.nn import attention_kernels
from jaxprune.ops.blocks import by_rows


def unit(x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
    """Tokens divided by their norm, in float32 and without gradient; a token of zeros stays zero."""
    x = jax.lax.stop_gradient(x).astype(jnp.float32)
    return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), jnp.finfo(jnp.float32).tiny)


def products(x: Float[Array, "b m d"], y: Float[Array, "b n d"]) -> Float[Array, "b m n"]:
    """The dot product of every row of `x` with every row of `y`, in full precision."""
    return jax.lax.dot_general(x, y, (((2,), (2,)), ((0,), (0,))), precision=jax.lax.Precision.HIGHEST)


class Cosines:
    """The cosines between the tokens of each image, in blocks of rows where `nn.attention_kernels` asks for it.

    In blocks, each use recomputes the products.
    """

    def __init__(self, x: Float[Array, "b n d"]):
        self._unit, self._size = unit(x), attention_kernels.row_block()
        self._whole = products(self._unit, self._unit) if self._size is None else None

    def by_rows(self, f: Callable[..., Any], *rows: Array) -> Any:
        """Returns `f(cosines, *rows)`, computed in blocks of rows; see `ops.blocks.by_rows`."""
        if self._whole is not None:
            return f(self._whole, *rows)
        of_rows = lambda x, *rows: f(products(x, self._unit), *rows)
        return by_rows(of_rows, self._unit, *rows, size=self._size)

    def of(self, ids: Int[Array, "b"]) -> Float[Array, "b n"]:
        """The cosines of one token of each image with all of its tokens."""
        table = self._unit if self._whole is None else self._whole
        row = jax.vmap(lambda values, place: values[place])(table, ids)
        return row if self._whole is not None else products(row[:, None], self._unit)[:, 0]
