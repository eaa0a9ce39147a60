"""Masked images next to their reconstructions."""

import numpy as np
from jaxtyping import Bool, UInt8

from jaxprune.report.pictures.base import GREY, WHITE, Picture
from jaxprune.report.pictures.drawing import patches_to_pixels
from jaxprune.report.pictures.layout import beside, upscale
from jaxprune.report.pictures.marks import mark_patches, mask_patches, outline_patches
from jaxprune.report.pictures.text import label


def reconstruction_rows(
    originals: UInt8[np.ndarray, "b H W 3"],
    masked: Bool[np.ndarray, "b p"],
    thrown: Bool[np.ndarray, "b p"] | None,
    reconstructions: UInt8[np.ndarray, "b H W 3"],
    grid: tuple[int, int],
    pad: int = 6,
    *,
    mean_colours: bool = False,
) -> Picture:
    """Draws one row per image: original, masked, reconstructed, and the reconstruction with thrown patches marked.

    Args:
      originals: the images.
      masked: which patches are masked; the others are shown as in the original in every column.
      thrown: which patches are thrown; None, as for a plain masked auto-encoder, omits the last column.
      reconstructions: the predicted images.
      grid: the number of rows and columns of patches.
      pad: pixels between pictures.
      mean_colours: whether to draw beside the reconstruction what each masked patch's mean colour alone would give.
    """
    rows = []
    columns = ["original", "masked", *["mean colours"] * mean_colours, "reconstructed"]
    columns += ["thrown cells marked"] if thrown is not None else []
    for index, original in enumerate(np.asarray(originals)):
        hidden = patches_to_pixels(masked[index], original.shape, grid).astype(bool)
        pasted = np.where(hidden[..., None], reconstructions[index], original).astype(np.uint8)
        pictures = [original, mask_patches(original, masked[index], grid, GREY), pasted]
        if mean_colours:
            pictures.insert(2, np.where(hidden[..., None], _mean_colours(original, grid), original).astype(np.uint8))
        cells = [upscale(picture) for picture in pictures]
        if thrown is not None:
            cells.append(outline_patches(mark_patches(cells[-1], thrown[index], grid), thrown[index], grid))
        if index == 0:
            cells = [label(cell, text, 18) for cell, text in zip(cells, columns, strict=True)]
        rows += [beside(cells, pad)]
    gap = np.full((pad, rows[0].shape[1], 3), WHITE, np.uint8)
    return np.concatenate([part for row in rows for part in (gap, row)][1:])


def _mean_colours(image: UInt8[np.ndarray, "H W 3"], grid: tuple[int, int]) -> UInt8[np.ndarray, "H W 3"]:
    height, width = (side // count for side, count in zip(image.shape, grid, strict=False))
    patches = image.reshape(grid[0], height, grid[1], width, 3)
    means = np.rint(patches.mean((1, 3), keepdims=True))
    return np.broadcast_to(means, patches.shape).reshape(image.shape).astype(np.uint8)
