"""Random crops of an image and its label map that no single class fills (mmsegmentation's rule)."""

from typing import Any

import numpy as np
from jaxtyping import Integer

from jaxprune.data.crop_resize import Box
from jaxprune.ops.label_maps import IGNORED

TRIES = 10


def varied_box(rng: Any, label_map: Integer[np.ndarray, "h w"], shape: tuple[int, int], most: float = 0.75) -> Box:
    """Draws the place of a crop: again, up to ten times, while one class has `most` of its labelled pixels or more.

    The last draw is taken as it is. Where the image is smaller than the crop, all of it is taken.

    Args:
      rng: a NumPy generator.
      shape: height and width of the crop.
      most: a share of the labelled pixels; 0: any crop.
    """
    rows, columns = label_map.shape
    height, width = min(shape[0], rows), min(shape[1], columns)

    def draw() -> Box:
        top = int(rng.integers(0, rows - height + 1))
        return top, int(rng.integers(0, columns - width + 1)), height, width

    box = draw()
    for _ in range(TRIES if most else 0):
        classes, counts = np.unique(cropped(label_map, box), return_counts=True)
        counts = counts[classes != IGNORED]
        if len(counts) > 1 and counts.max() / counts.sum() < most:
            break
        box = draw()
    return box


def cropped(picture: np.ndarray, box: Box) -> np.ndarray:
    """Returns a part of an image or map."""
    top, left, height, width = box
    return picture[top : top + height, left : left + width]
