"""Resizing as OpenCV does, in whose pixels published segmentation networks are trained: without antialiasing."""

from collections.abc import Sequence

import numpy as np

_BITS = 11  # OpenCV's weights are whole numbers of 1 / 2048


def fitted_size(shape: Sequence[int], box: Sequence[float]) -> tuple[int, int]:
    """Returns the largest size of an image's aspect ratio that fits into a box, in either orientation.

    >>> fitted_size((480, 640), (2048, 512))
    (512, 683)

    Args:
      shape: height and width of the image.
      box: the lengths that the longer and the shorter side may have.
    """
    factor = min(max(box) / max(shape), min(box) / min(shape))
    height, width = (max(int(side * factor + 0.5), 1) for side in shape)
    return height, width


def resized(picture: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Returns an image resized, bilinear, or a map, (h, w), by nearest neighbour.

    Args:
      picture: uint8 (h, w, 3), or any dtype (h, w).
      shape: height and width of the result.
    """
    height, width = shape
    if picture.shape[:2] == (height, width):
        return picture
    if picture.ndim == 2:
        rows, columns = (_nearest(old, new) for old, new in zip(picture.shape, (height, width), strict=True))
        return picture[rows[:, None], columns[None, :]]
    # First along the rows, in whole numbers. Each product loses its last bits before the sum is rounded.
    low, high, weight = _linear(picture.shape[1], width)
    wide = picture.astype(np.int32)
    wide = wide[:, low] * (2**_BITS - weight)[None, :, None] + wide[:, high] * weight[None, :, None]
    low, high, weight = _linear(picture.shape[0], height)
    products = (
        (wide[place] >> 4) * factor[:, None, None] >> 16 for place, factor in ((low, 2**_BITS - weight), (high, weight))
    )
    return ((sum(products) + 2) >> 2).astype(np.uint8)


def _nearest(old: int, new: int) -> np.ndarray:
    return np.minimum((np.arange(new) * (old / new)).astype(np.int64), old - 1)


def _linear(old: int, new: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The two pixels that each new one lies between, and the weight of the second in units of 1 / 2**_BITS."""
    centre = (np.arange(new) + 0.5) * (old / new) - 0.5
    low = np.floor(centre).astype(np.int64)
    share = np.where((low < 0) | (low >= old - 1), 0.0, centre - low)
    low = np.clip(low, 0, old - 1)
    return low, np.minimum(low + 1, old - 1), np.rint(share * 2**_BITS).astype(np.int32)
