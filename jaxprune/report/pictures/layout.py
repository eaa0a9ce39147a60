"""Pictures enlarged and arranged in rows and sheets."""

import math
from collections.abc import Sequence

import numpy as np

from jaxprune.report.pictures.base import WHITE, Colour, Picture

READABLE = 192  # smaller pictures are enlarged to at least this many pixels before text or lines are drawn on them


def upscale(image: Picture, least: int = READABLE) -> Picture:
    """Repeats each pixel a whole number of times, so that the shorter side has at least `least` pixels."""
    factor = max(1, math.ceil(least / min(image.shape[:2])))
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def tile(images: Sequence[Picture], columns: int = 8, pad: int = 4, background: Colour = WHITE) -> Picture:
    """Arranges pictures of the same size in rows of `columns`, `pad` pixels apart."""
    count = len(images)
    height, width = images[0].shape[:2]
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    sheet = np.full((rows * (height + pad) - pad, columns * (width + pad) - pad, 3), background, np.uint8)
    for index, image in enumerate(images):
        top, left = (index // columns) * (height + pad), (index % columns) * (width + pad)
        sheet[top : top + height, left : left + width] = image
    return sheet


def beside(pictures: Sequence[Picture], pad: int) -> Picture:
    """Places pictures side by side, `pad` pixels apart; all are cropped to the height of the first."""
    height, gap = pictures[0].shape[0], np.full((pictures[0].shape[0], pad, 3), WHITE, np.uint8)
    parts = [part for picture in pictures for part in (gap, picture[:height])]
    return np.concatenate(parts[1:], axis=1)
