"""Types and colours that all pictures share, and the conversion of image arrays to uint8."""

from typing import Any

import numpy as np
from jaxtyping import UInt8

Colour = tuple[int, int, int]

# Functions never modify a picture that is passed to them. A grid (gh, gw) divides it into p = gh·gw patches, numbered
# row by row; if it does not divide the sides evenly, the sizes of patches differ by at most one pixel.
Picture = UInt8[np.ndarray, "H W 3"]

GREY, WHITE, INK, MUTED = (128, 128, 128), (255, 255, 255), (31, 41, 51), (91, 103, 117)
CROSS = (72, 72, 76)  # on grey patches that are hidden
ORANGE, BLUE, GREEN = (230, 110, 10), (10, 120, 184), (15, 147, 114)


def to_uint8(images: Any, mean: Any = None, std: Any = None) -> UInt8[np.ndarray, "..."]:
    """Returns images as uint8.

    Args:
      images: any leading axes. Integers are assumed to be in 0…255 already. Floating point and bool are assumed to be
        in [0, 1] after undoing a normalisation, `images * std + mean`; values outside are clipped, NaN becomes black.
      mean: a scalar or one value per channel.
      std: a scalar or one value per channel.
    """
    images = np.asarray(images)
    if np.issubdtype(images.dtype, np.integer):
        return images.astype(np.uint8, copy=False)
    values = images.astype(np.float32)
    if std is not None:
        values = values * np.asarray(std, np.float32)
    if mean is not None:
        values = values + np.asarray(mean, np.float32)
    return np.round(np.clip(np.nan_to_num(values), 0, 1) * 255).astype(np.uint8)
