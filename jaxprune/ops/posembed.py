"""Position tables: the fixed sine-cosine table, and resampling a table to another grid."""

import math
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array
from jaxtyping import Float

from jaxprune.errors import UserError
from jaxprune.ops.resize import resize, resize_3d


class Resampling(NamedTuple):
    """How a family resamples learned positions to another grid of an image; see `resample`.

    Attributes:
      method: "bicubic" or "bilinear".
      antialias: with antialiasing (a = -0.5), as in timm; otherwise without (a = -0.75), as in MAE.
      keeps_aspect: resizes to a square of the longer side and keeps its upper left part, so that a patch is as wide as
        it is high in the table too (NaFlexViT).
      align_corners: aligns the corner patches of both grids; otherwise patches are areas.
    """

    method: Literal["bicubic", "bilinear"] = "bicubic"
    antialias: bool = True
    keeps_aspect: bool = False
    align_corners: bool = False


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
    num_rows: int, num_prefix_tokens: int, grid: tuple[int, ...], table_name: str = "pos_embed"
) -> tuple[int, ...]:
    """Infers the grid of a position table from its number of rows: `grid` itself, or a square one.

    Args:
      num_rows: number of rows of the table, including the prefix.
      grid: the needed (rows, columns) of patches, or (frames, rows, columns), of which frames are the table's too.
      table_name: name of the table in the error message.

    Raises:
      UserError: the number of rows fits neither.
    """
    patches, frames = max(num_rows - num_prefix_tokens, 0), math.prod(grid[:-2])
    side = math.isqrt(patches // frames)
    if patches == math.prod(grid):
        return grid
    if patches and side * side * frames == patches:
        return *grid[:-2], side, side
    raise UserError(
        f"{table_name} has {num_rows} rows, which with {num_prefix_tokens} prefix tokens make no square grid, and "
        f"{'×'.join(map(str, grid))} patches are needed: build the network with the img_size that the table was made "
        "for, save it, and load that with img_size=."
    )


def resample(
    pos_embed: Float[Array, "1 n d"],
    old_grid: tuple[int, ...],
    new_grid: tuple[int, ...],
    num_prefix_tokens: int,
    *,
    antialias: bool = False,
    method: Literal["bicubic", "bilinear"] = "bicubic",
    keeps_aspect: bool = False,
    align_corners: bool = False,
) -> Float[Array, "1 m d"]:
    """Resamples a position table to another grid, by default bicubic, with half-pixel centres.

    The rows of prefix tokens are copied; a table of the same grid is returned unchanged. Positions of clips are
    resampled trilinearly, as in V-JEPA (Bardes et al., 2024).

    Args:
      old_grid, new_grid: (rows, columns), or (frames, rows, columns) of clips.
      antialias, method, keeps_aspect, align_corners: see `Resampling`; only for images.

    Raises:
      UserError: the table does not have `old_grid`'s rows.
    """
    _, n, d = pos_embed.shape
    if n != num_prefix_tokens + math.prod(old_grid):
        raise UserError(
            f"A position table of {n} rows is not a {'×'.join(map(str, old_grid))} grid with {num_prefix_tokens} "
            "prefix tokens; give the grid the table was made for."
        )
    if old_grid == new_grid:
        return pos_embed
    prefix, patches = jnp.split(jnp.asarray(pos_embed), [num_prefix_tokens], axis=1)
    maps, new = patches.reshape(1, *old_grid, d), new_grid
    if len(new) == 3:
        moved = resize_3d(maps, new)
    else:
        sides = (max(new), max(new)) if keeps_aspect else (new[0], new[1])
        moved = resize(maps, sides, method, align_corners=align_corners, antialias=antialias)[:, : new[0], : new[1]]
    return jnp.concatenate([prefix, moved.reshape(1, math.prod(new), d)], axis=1)


def resample_relative(
    table: Float[np.ndarray, "r h"],
    new_grid: tuple[int, int],
    num_extra: int = 3,
    *,
    old_grid: tuple[int, int] | None = None,
    cubic: bool = False,
) -> Float[np.ndarray, "s h"]:
    """Resamples a table of relative positions to another grid, as in BEiT's and timm's code (from a square grid).

    The offsets of the table are spread geometrically, each step a constant factor wider than the previous one, up to
    the largest offset of the new grid, with interpolation in between: linear, as timm does, or by cubic splines.

    Args:
      table: the bias of each head by offset, (rows, columns) in raster order, and `num_extra` rows that are copied.
      old_grid: the grid the table was made for; None = a square one, by the number of its rows.
      cubic: interpolates by cubic splines, as BEiT's segmentation code does.

    Raises:
      UserError: the rows do not fit the grid.
    """
    count = len(table) - num_extra
    square = math.isqrt(max(count, 0))
    old = (square, square) if old_grid is None else (2 * old_grid[0] - 1, 2 * old_grid[1] - 1)
    new = (2 * new_grid[0] - 1, 2 * new_grid[1] - 1)
    if math.prod(old) != count or not all(side % 2 for side in old):
        grid_text = "a square grid" if old_grid is None else f"a grid of {old_grid[0]}×{old_grid[1]}"
        raise UserError(
            f"A table of {len(table)} relative positions does not fit {grid_text}: build the network with the img_size "
            "that it was made for."
        )
    if new == old:
        return table
    offsets, extra = table[:count].reshape(*old, -1), table[count:]
    places = [_spread(before, after) for before, after in zip(old, new, strict=True)]
    steps = [np.arange(after) - after // 2 for after in new]
    if cubic:
        degrees = {"kx": min(3, old[0] - 1), "ky": min(3, old[1] - 1)}
        heads = np.moveaxis(offsets.astype(np.float64), -1, 0)
        offsets = np.stack(
            [scipy.interpolate.RectBivariateSpline(*places, head, **degrees)(*steps) for head in heads], axis=-1
        )
    else:
        for axis in range(2):
            line_up = lambda line, p=places[axis], o=steps[axis]: np.interp(o, p, line)
            offsets = np.apply_along_axis(line_up, axis, offsets)
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
