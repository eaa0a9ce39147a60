"""From the maps of a network to one value a patch."""

import math
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.ops.resize import resize, resize_3d


def to_grid(
    maps: Float[Array, "b ..."],
    grid: tuple[int, ...],
    method: Literal["bicubic", "bilinear"] = "bicubic",
    *,
    align_corners: bool = False,
) -> Float[Array, "b p"]:
    """Resizes one map an image, (h, w) or of a video (t, h, w), to the patches' grid; flat, in raster order."""
    if maps.ndim != len(grid) + 1:
        raise UserError(
            f"A grid of {len(grid)} sides ({grid}) does not fit maps of {maps.ndim - 1}: give as many sides."
        )
    if len(grid) == 3:
        resized = resize_3d(maps[..., None], grid, "trilinear", align_corners=align_corners)
    else:
        resized = resize(maps[..., None], (grid[0], grid[1]), method, align_corners=align_corners)
    return resized.reshape(maps.shape[0], math.prod(grid))


def min_max(values: Float[Array, "b ..."], eps: float = 1e-7) -> Float[Array, "b ..."]:
    """Stretches the values of each image to [0, 1)."""
    axes = tuple(range(1, values.ndim))
    values = values - values.min(axes, keepdims=True)
    return values / (values.max(axes, keepdims=True) + eps)


def activation(
    raw: Float[Array, "b h w"], grid: tuple[int, ...], via: tuple[int, ...] | None = None
) -> Float[Array, "b p"]:
    """What all activation maps end with: the positive part, stretched to [0, 1), bilinear to the grid, stretched again.

    Args:
      via: is resized to first, and stretched there, as published code does that lays the map over the image: a slight
        blur. The step to the grid is then the last.
    """
    maps = min_max(jnp.maximum(raw, 0))
    if via is not None:
        maps = min_max(to_grid(maps, via, "bilinear")).reshape(-1, *via)
        return to_grid(maps, grid, "bilinear")
    return min_max(to_grid(maps, grid, "bilinear"))
