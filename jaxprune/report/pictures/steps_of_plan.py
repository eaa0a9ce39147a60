"""The patches left after each step of a plan."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxprune.report.pictures.base import Picture
from jaxprune.report.pictures.film_strip import film_strip, grouped_strip
from jaxprune.report.pictures.layout import tile, upscale
from jaxprune.report.pictures.token_groups import token_groups


def steps_of_plan(images: np.ndarray, assign: Sequence[Any], grids: Sequence[tuple[int, ...]]) -> Picture:
    """Draws a row for each image: the image, then after every step its dropped and merged patches.

    Clips are drawn as film strips, one below the other.

    Args:
      images: uint8 (n, h, w, 3), or clips, uint8 (n, frames, h, w, 3).
      assign: for each step the token that holds each patch, int (n, p); -1 = dropped.
      grids: for each step the grid of patches, (rows, columns), or of tubes, (layers, rows, columns).
    """
    if images.ndim == 5:
        return _strips(images, assign, grids)
    cells = []
    for index, image in enumerate(images):
        cells.append(upscale(image))
        steps = zip(assign, grids, strict=True)
        cells += [token_groups(upscale(image), np.asarray(step)[index], (grid[0], grid[1])) for step, grid in steps]
    return tile(cells, columns=1 + len(assign))


def _strips(clips: np.ndarray, assign: Sequence[Any], grids: Sequence[tuple[int, ...]]) -> Picture:
    cells = []
    for index, clip in enumerate(clips):
        cells.append(film_strip(clip, None, (grids[0][0], grids[0][1], grids[0][2])))
        for step, grid in zip(assign, grids, strict=True):
            cells.append(grouped_strip(clip, np.asarray(step)[index], (grid[0], grid[1], grid[2])))
    return tile(cells, columns=1, pad=6)
