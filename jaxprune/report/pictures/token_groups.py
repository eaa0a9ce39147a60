"""Which patches were dropped, and which were merged into the same token."""

import numpy as np
from jaxtyping import Int

from jaxprune.report.pictures.base import Picture
from jaxprune.report.pictures.drawing import edges, line_width, patches_to_pixels
from jaxprune.report.pictures.marks import mask_patches

_HIDDEN = 0.7  # opacity over dropped patches: one still recognises what was dropped


def token_groups(
    image: Picture,
    assign: Int[np.ndarray, " p"],
    grid: tuple[int, int],
    average: bool = False,
    thickness: int | None = None,
) -> Picture:
    """Greys dropped patches out, and draws a border of one colour around patches merged into the same token.

    Args:
      image: the picture.
      assign: for each patch, the index of the token that contains it, or -1 if it was dropped. A patch that is a token
        of its own is not changed.
      grid: the number of rows and columns of patches.
      average: whether merged patches are filled with their mean colour.
      thickness: width of the borders in pixels; by default, it depends on the size of the picture.
    """
    assign = np.asarray(assign).astype(np.int64)
    groups, compact, sizes = np.unique(assign, return_inverse=True, return_counts=True)
    ids = patches_to_pixels(compact, image.shape, grid)
    dropped = groups < 0
    merged = (sizes > 1) & ~dropped
    out = mask_patches(image, dropped[compact], grid, opacity=_HIDDEN) if dropped.any() else image
    if average:
        totals = [np.bincount(ids.ravel(), image[..., channel].ravel()) for channel in range(3)]
        means = np.stack(totals, axis=-1) / np.bincount(ids.ravel())[:, None]
        out = np.where(merged[ids][..., None], means[ids], out)
    border = edges(ids, line_width(thickness, image.shape)) & merged[ids]
    out = np.where(border[..., None], _group_colours(len(groups))[ids], out)
    return np.round(out).astype(np.uint8)


def _group_colours(count: int) -> Int[np.ndarray, "count 3"]:
    """Returns bright colours such that consecutive ones differ clearly in hue."""
    hue = (np.arange(count) * 0.61803398875) % 1  # multiples of the golden ratio are spread evenly and never repeat
    value = np.where(np.arange(count) % 2, 255, 215)
    phase = (hue[:, None] * 6 + np.array([0, 4, 2])[None, :]) % 6
    ramp = np.clip(abs(phase - 3) - 1, 0, 1)
    return np.round(value[:, None] * (0.15 + 0.85 * ramp)).astype(int)
