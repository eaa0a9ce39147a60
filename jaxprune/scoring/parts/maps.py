"""Feature maps to one value per patch."""

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
    """Resizes one map per image, (h, w) or of a video (t, h, w), to the patch grid; flattened in raster order."""
    if maps.ndim != len(grid) + 1:
        raise UserError(
            f"grid={grid} has {len(grid)} dimensions, but the maps have {maps.ndim - 1}: pass a grid with as many."
        )
    if len(grid) == 3:
        resized = resize_3d(maps[..., None], grid, "trilinear", align_corners=align_corners)
    else:
        resized = resize(maps[..., None], (grid[0], grid[1]), method, align_corners=align_corners)
    return resized.reshape(maps.shape[0], math.prod(grid))


def min_max(values: Float[Array, "b ..."], eps: float = 1e-7) -> Float[Array, "b ..."]:
    """Rescales the values of each image to [0, 1)."""
    axes = tuple(range(1, values.ndim))
    values = values - values.min(axes, keepdims=True)
    return values / (values.max(axes, keepdims=True) + eps)


def activation(
    raw: Float[Array, "b *map"], grid: tuple[int, ...], via: tuple[int, ...] | None = None
) -> Float[Array, "b p"]:
    """The final steps of all activation maps: ReLU, rescaling to [0, 1), bilinear to the grid, and rescaling again.

    Args:
      via: an intermediate size, at which the map is rescaled before it is resized to the grid, as in published code
        that overlays it on the image; this blurs it slightly. There is no rescaling on the grid then.
    """
    maps = min_max(jnp.maximum(raw, 0))
    if via is not None:
        maps = min_max(to_grid(maps, via, "bilinear")).reshape(-1, *via)
        return to_grid(maps, grid, "bilinear")
    return min_max(to_grid(maps, grid, "bilinear"))
