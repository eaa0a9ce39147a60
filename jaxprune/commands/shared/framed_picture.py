"""An image of a source as a picture of a report, in a frame that says whether an answer is right."""

from typing import Any

import numpy as np

from jaxprune.data.broken_examples import read_or_next
from jaxprune.data.crop_resize import prepare
from jaxprune.data.source import Source
from jaxprune.preprocessing import Preprocessing
from jaxprune.report.pictures.base import GREEN, ORANGE
from jaxprune.report.pictures.film_strip import still
from jaxprune.report.pictures.layout import upscale
from jaxprune.report.pictures.marks import outline_patches

_FRAME = 5  # pixels


def framed_picture(source: Source, index: Any, preprocessing: Preprocessing, right: Any) -> np.ndarray:
    """Returns an image as a network sees it, framed in green if an answer is right, in orange if it is wrong.

    Args:
      index: the image's number in the source.
      right: whether it is right; None leaves the frame out.
    """
    image = read_or_next(source, int(index))["image"]
    picture = still(image) if preprocessing.num_frames else upscale(prepare(image, preprocessing))
    if right is None:
        return picture
    return outline_patches(picture, np.array([True]), (1, 1), GREEN if right else ORANGE, _FRAME)
