"""Drawing primitives on a grid of patches: the pixels of each patch, borders and blending."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from jaxprune.errors import UserError
from jaxprune.report.pictures.base import Picture


def patch_ids(shape: tuple[int, ...], grid: tuple[int, int]) -> Int[np.ndarray, "H W"]:
    """Returns the number of each pixel's patch."""
    rows, columns = (np.arange(side) * cells // side for side, cells in zip(shape[:2], grid, strict=True))
    return rows[:, None] * grid[1] + columns[None, :]


def patches_to_pixels(patches: Any, shape: tuple[int, ...], grid: tuple[int, int]) -> np.ndarray:
    """Repeats one value per patch over the patch's pixels.

    Raises:
      UserError: the number of values is not that of patches.
    """
    patches = np.asarray(patches).reshape(-1)
    if len(patches) != grid[0] * grid[1]:
        raise UserError(f"A grid of {grid[0]} × {grid[1]} has {grid[0] * grid[1]} patches; got {len(patches)} values.")
    return patches[patch_ids(shape, grid)]


def edges(ids: Int[np.ndarray, "H W"], thickness: int) -> Bool[np.ndarray, "H W"]:
    """Returns which pixels are within `thickness` pixels of another id or of the picture's border."""
    height, width = ids.shape
    padded = np.pad(ids, thickness, constant_values=np.iinfo(ids.dtype).min)
    edge = np.zeros(ids.shape, bool)
    for d in range(1, thickness + 1):
        for dy, dx in ((d, 0), (-d, 0), (0, d), (0, -d), (d, d), (d, -d), (-d, d), (-d, -d)):
            top, left = thickness + dy, thickness + dx
            edge |= padded[top : top + height, left : left + width] != ids
    return edge


def line_width(thickness: int | None, shape: tuple[int, ...]) -> int:
    """Returns `thickness`, by default such that lines stay visible when the picture is scaled down."""
    return max(1, round(min(shape[:2]) / 100)) if thickness is None else thickness


def blend(image: Picture, where: Bool[np.ndarray, "H W"], colour: Any, opacity: float) -> Picture:
    """Blends `colour`, one for all pixels or one per pixel, into the pixels selected by `where`."""
    mixed = image * (1 - opacity) + np.asarray(colour, float) * opacity
    return np.where(where[..., None], np.round(mixed), image).astype(np.uint8)
