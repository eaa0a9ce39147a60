"""Label maps: the class of each pixel."""

from typing import TypeVar

import numpy as np
from jax import Array

IGNORED = 255
_Labels = TypeVar("_Labels", Array, np.ndarray)


def reduce_zero_label(labels: _Labels) -> _Labels:
    """Maps label v + 1 to class v, as in ADE20K: 0, "other", is ignored (255), and 255 stays ignored.

    >>> import numpy as np
    >>> reduce_zero_label(np.array([0, 1, 150, 255], np.uint8)).tolist()
    [255, 0, 149, 255]

    Args:
      labels: unsigned integers of 8 bits or more.
    """
    ignored = (labels == 0) | (labels == IGNORED)
    return (labels - 1) * ~ignored + labels.dtype.type(IGNORED) * ignored
