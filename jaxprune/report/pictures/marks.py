"""Marks on the patches or objects of a picture: masks, frames, hatching, outlines."""

from typing import Literal

import numpy as np
from jaxtyping import Bool

from jaxprune.report.pictures.base import CROSS, GREY, ORANGE, Colour, Picture
from jaxprune.report.pictures.drawing import blend, edges, line_width, patch_ids, patches_to_pixels


def mask_patches(
    image: Picture,
    masked: Bool[np.ndarray, " p"],
    grid: tuple[int, int],
    color: Colour | None = None,
    opacity: float = 1.0,
) -> Picture:
    """Hides the masked patches: with a colour, or by default with grey and a cross.

    The grey differs from dark and from bright photographs, the cross from grey ones.

    Args:
      image: the picture.
      masked: the patches to hide.
      grid: the number of rows and columns of patches.
      color: of the filling; None for grey with a cross.
      opacity: below 1, the brightness of what is hidden stays visible, but not its colour.
    """
    where = patches_to_pixels(masked, image.shape, grid).astype(bool)
    without_colour = np.broadcast_to(image.mean(axis=-1, keepdims=True), image.shape).round().astype(np.uint8)
    out = blend(np.where(where[..., None], without_colour, image), where, GREY if color is None else color, opacity)
    return mark_patches(out, masked, grid, "cross", CROSS) if color is None else out


def outline_patches(
    image: Picture,
    selected: Bool[np.ndarray, " p"],
    grid: tuple[int, int],
    color: Colour = ORANGE,
    thickness: int | None = None,
) -> Picture:
    """Draws a frame inside each selected patch."""
    frames = edges(patch_ids(image.shape, grid), line_width(thickness, image.shape))
    return blend(image, frames & patches_to_pixels(selected, image.shape, grid).astype(bool), color, 1.0)


def mark_patches(
    image: Picture,
    selected: Bool[np.ndarray, " p"],
    grid: tuple[int, int],
    style: Literal["hatch", "cross", "tint"] = "hatch",
    color: Colour = ORANGE,
) -> Picture:
    """Marks the selected patches with fine diagonal lines, a cross from corner to corner, or a translucent tint."""
    pixels = patches_to_pixels(selected, image.shape, grid).astype(bool)
    height, width = image.shape[:2]
    if style == "tint":
        return blend(image, pixels, color, 0.45)
    y, x = np.arange(height)[:, None], np.arange(width)[None, :]
    cell = min(height / grid[0], width / grid[1])
    if style == "hatch":
        period = max(4, round(cell / 3))
        return blend(image, pixels & ((x + y) % period < max(1, period // 4)), color, 1.0)
    # Position inside the patch in [0, 1): on the diagonals, both coordinates are equal or add up to one.
    inside_y, inside_x = (y + 0.5) * grid[0] / height % 1, (x + 0.5) * grid[1] / width % 1
    on_diagonal = np.minimum(abs(inside_y - inside_x), abs(inside_y + inside_x - 1)) < max(0.05, 0.9 / cell)
    return blend(image, pixels & on_diagonal, color, 1.0)


def mask_outline(
    image: Picture, mask: Bool[np.ndarray, "H W"], color: Colour = ORANGE, thickness: int | None = None
) -> Picture:
    """Draws the outline of an object's mask, inside the mask."""
    mask = np.asarray(mask, bool)
    return blend(image, edges(mask.astype(np.int32), line_width(thickness, image.shape)) & mask, color, 1.0)
