"""Position tables: the fixed sine-cosine table, and resampling a table to another grid."""

import math
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from jaxprune.errors import UserError
from jaxprune.ops.resize import resize


def sincos_2d(dim: int, grid: tuple[int, int], num_prefix_tokens: int = 0) -> Float[np.ndarray, "n {dim}"]:
    """Builds the fixed 2-D sine-cosine position table of MAE.

    A row is [sin, cos of the column index, sin, cos of the row index], each over dim/4 frequencies
    10000^(-4j/dim); the rows of prefix tokens are zero. Computed in float64, returned as float32.

    Args:
      dim: width of the table, a multiple of 4.
      grid: patches down and across.
      num_prefix_tokens: zero rows before the patches.

    Raises:
      UserError: `dim` is not a multiple of 4.
    """
    if dim % 4:
        raise UserError(f"A sine-cosine position table needs a width divisible by 4, not {dim}; change embed_dim.")
    height, width = grid
    frequencies = 10000.0 ** (-np.arange(dim // 4) / (dim / 4))
    row, column = np.divmod(np.arange(height * width), width)
    angles = [np.outer(column, frequencies), np.outer(row, frequencies)]
    table = np.concatenate([f(a) for a in angles for f in (np.sin, np.cos)], axis=1)
    return np.pad(table, ((num_prefix_tokens, 0), (0, 0))).astype(np.float32)


def sincos_1d(dim: int, length: int) -> Float[np.ndarray, "n {dim}"]:
    """Builds the fixed sine-cosine position table of VideoMAE: tubelets are numbered through, frames first.

    Channel 2i is the sine and 2i + 1 the cosine of position x 10000^(-2i/dim). Computed in float64, stored in float32.
    """
    angles = np.arange(length)[:, None] / 10000.0 ** (2 * (np.arange(dim) // 2) / dim)[None]
    return np.where(np.arange(dim)[None] % 2 == 0, np.sin(angles), np.cos(angles)).astype(np.float32)


def table_grid(
    num_rows: int, num_prefix_tokens: int, grid: tuple[int, int], what: str = "pos_embed"
) -> tuple[int, int]:
    """Infers the grid of a position table from its number of rows: `grid` itself, or a square one.

    Args:
      num_rows: number of rows of the table, including the prefix.
      grid: the wanted (rows, columns) of patches.
      what: name of the table in the error message.

    Raises:
      UserError: the number of rows fits neither.
    """
    patches = max(num_rows - num_prefix_tokens, 0)
    side = math.isqrt(patches)
    if patches == grid[0] * grid[1]:
        return grid
    if patches and side * side == patches:
        return side, side
    raise UserError(
        f"{what} has {num_rows} rows, which with {num_prefix_tokens} prefix tokens make no square grid, and "
        f"{grid[0]}×{grid[1]} patches are needed: build the network with the img_size that the table was made for, "
        "save it, and load that with img_size=."
    )


def resample(
    pos_embed: Float[Array, "1 n d"],
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    num_prefix_tokens: int,
    *,
    antialias: bool = False,
    method: Literal["bicubic", "bilinear"] = "bicubic",
) -> Float[Array, "1 m d"]:
    """Resamples a position table to another grid, by default bicubic, with half-pixel centres.

    The rows of prefix tokens are copied; a table of the same grid is returned unchanged.

    Args:
      antialias: with antialiasing (a = -0.5), as in timm; otherwise without (a = -0.75), as in MAE.

    Raises:
      UserError: the table does not have `old_grid`'s rows.
    """
    _, n, d = pos_embed.shape
    height, width = old_grid
    if n != num_prefix_tokens + height * width:
        raise UserError(
            f"A position table of {n} rows is not a {height}×{width} grid with {num_prefix_tokens} prefix tokens; "
            "give the grid the table was made for."
        )
    if old_grid == new_grid:
        return pos_embed
    prefix, patches = jnp.split(jnp.asarray(pos_embed), [num_prefix_tokens], axis=1)
    patches = resize(patches.reshape(1, height, width, d), new_grid, method, antialias=antialias)
    return jnp.concatenate([prefix, patches.reshape(1, new_grid[0] * new_grid[1], d)], axis=1)


def resample_relative(
    table: Float[np.ndarray, "r h"], new_grid: tuple[int, int], num_extra: int = 3
) -> Float[np.ndarray, "s h"]:
    """Resamples a table of relative positions of a square grid to another grid, as in BEiT's and timm's code.

    The offsets of the table are spread geometrically, each step a constant factor wider than the previous one, up to
    the largest offset of the new grid, with linear interpolation in between.

    Args:
      table: the bias of each head by offset, (rows, columns) in raster order, and `num_extra` rows that are copied.

    Raises:
      UserError: the rows do not fit a square grid.
    """
    side = math.isqrt(len(table) - num_extra)
    sides = tuple(2 * patches - 1 for patches in new_grid)
    if side * side != len(table) - num_extra or side % 2 == 0:
        raise UserError(
            f"A table of {len(table)} relative positions does not fit a square grid: build the network with "
            f"the img_size "
            "that it was made for."
        )
    if sides == (side, side):
        return table
    offsets, extra = table[: side * side].reshape(side, side, -1), table[side * side :]
    for axis, new in enumerate(sides):
        places, wanted = _spread(side, new), np.arange(new) - new // 2
        offsets = np.apply_along_axis(lambda line, p=places, w=wanted: np.interp(w, p, line), axis, offsets)
    return np.concatenate([offsets.reshape(-1, table.shape[1]), extra]).astype(table.dtype)


def _spread(old: int, new: int) -> Float[np.ndarray, "n"]:
    """The positions of `old` offsets among `new` ones: 0, 1, 1 + q, 1 + q + q^2, … and their negatives."""
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        q = (low + high) / 2
        low, high = (low, q) if sum(q**i for i in range(old // 2)) > new // 2 else (q, high)
    # The last value tried instead of the middle of the bounds, as published.
    places = np.cumsum([q**i for i in range(old // 2)])
    return np.concatenate([-places[::-1], [0.0], places])
