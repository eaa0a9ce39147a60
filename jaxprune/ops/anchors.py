"""Anchors: the boxes of fixed sizes and shapes that a region proposal network starts from (Ren et al., 2015)."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

ASPECT_RATIOS = (0.5, 1.0, 2.0)


def cell_anchors(
    sizes: Sequence[int | float], aspect_ratios: Sequence[float] = ASPECT_RATIOS
) -> Float[np.ndarray, "a 4"]:
    """The anchors around the origin: for each size, for each aspect ratio, a box of area size².

    >>> cell_anchors((32,), (1.0,)).tolist()
    [[-16.0, -16.0, 16.0, 16.0]]

    Args:
      sizes: sides of a square of the same area, in pixels.
      aspect_ratios: height over width.
    """
    corners = []
    for size in sizes:
        for ratio in aspect_ratios:
            width = (size**2 / ratio) ** 0.5
            height = ratio * width
            corners.append((-width / 2, -height / 2, width / 2, height / 2))
    return np.asarray(corners, np.float32)


def anchors(
    grid: tuple[int, int],
    stride: int | float,
    sizes: Sequence[int | float],
    aspect_ratios: Sequence[float] = ASPECT_RATIOS,
    *,
    offset: float = 0.0,
) -> Float[np.ndarray, "n 4"]:
    """The anchors of a map in the order row, column, size, aspect ratio.

    Args:
      grid: (rows, columns) of the map.
      stride: pixels between two places of the map.
      offset: where in its cell an anchor is centred, in strides; 0 = the upper left corner, as in detectron2.
    """
    rows, columns = ((np.arange(side, dtype=np.float32) + np.float32(offset)) * np.float32(stride) for side in grid)
    y, x = np.meshgrid(rows, columns, indexing="ij")
    places = np.stack([x, y, x, y], axis=-1).reshape(-1, 1, 4)
    return (places + cell_anchors(sizes, aspect_ratios)[None]).reshape(-1, 4)
