"""Relative position bias of the attention logits (BEiT, Bao et al., 2022)."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxprune.nn.tokens import coordinates
from jaxprune.nn.windows import Windows

# The last three rows of a table: the CLS token to a patch, a patch to the CLS token, the CLS token to itself.
_FROM_CLS, _TO_CLS, _CLS = -3, -2, -1


def table_rows(grid: tuple[int, int]) -> int:
    """The number of rows of a table: one per offset between two patches of a grid, and three for the CLS token."""
    return (2 * grid[0] - 1) * (2 * grid[1] - 1) + 3


def relative_bias(
    table: Float[Array, "r h"], position: Float[Array, "b n 2"] | None, grid: tuple[int, int]
) -> Float[Array, "#b h n n"]:
    """The bias of every pair of tokens, in float32; the first token is the CLS token.

    Args:
      table: the bias of each head by offset, rows first.
      position: (row, column) of each token in patches, ignored for the CLS token; fractional positions of merged rows
        are rounded. None: all patches of the grid are present, in raster order.
    """
    all_present = position is None
    places = np.pad(coordinates(grid), ((1, 0), (0, 0)))[None] if position is None else jnp.round(position)
    numbers = np if all_present else jnp
    index = Windows(grid, grid).offsets_between(places.astype(numbers.int32))
    first, last = np.arange(places.shape[1]) == 0, table.shape[0]
    query, key = first[None, :, None], first[None, None, :]
    for where, row in ((query & ~key, _FROM_CLS), (~query & key, _TO_CLS), (query & key, _CLS)):
        index = numbers.where(where, last + row, index)
    return jnp.moveaxis(table.astype(jnp.float32)[index], -1, 1)
