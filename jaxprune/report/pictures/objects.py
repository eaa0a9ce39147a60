"""Objects over images: boxes and masks in the colours of their classes."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from PIL import Image, ImageDraw

from jaxprune.report.pictures.base import WHITE, Colour, Picture
from jaxprune.report.pictures.text import load_font


def draw_objects(
    image: Picture,
    boxes: Float[np.ndarray, "n 4"],
    classes: Sequence[int],
    colours: Sequence[Colour],
    *,
    masks: Sequence[Bool[np.ndarray, "h w"]] = (),
    labels: Sequence[str] = (),
    opacity: float = 0.45,
) -> Picture:
    """Draws objects over an image, the last one uppermost.

    >>> picture = draw_objects(np.zeros((8, 8, 3), np.uint8), np.array([[1.0, 1, 6, 6]]), [0], [(255, 0, 0)])
    >>> picture[1, 1].tolist(), picture[4, 4].tolist()
    ([255, 0, 0], [0, 0, 0])

    Args:
      boxes: x0, y0, x1, y1 in pixels of the image.
      classes: of each box.
      colours: one for each class.
      masks: the pixels of each object; none by default.
      labels: a text at the upper left corner of each box.
      opacity: of the masks.
    """
    tinted = image.astype(np.float32)
    for mask, number in zip(masks, classes, strict=bool(len(masks))):
        tinted = np.where(
            mask[..., None], tinted + opacity * (np.asarray(colours[number], np.float32) - tinted), tinted
        )
    picture = Image.fromarray(np.round(tinted).astype(np.uint8))
    draw, font, line = ImageDraw.Draw(picture), load_font(11), max(1, min(image.shape[:2]) // 200)
    last = np.array([image.shape[1] - 1, image.shape[0] - 1] * 2)
    for place, (box, number) in enumerate(zip(boxes, classes, strict=True)):
        x0, y0, x1, y1 = np.clip(np.round(np.asarray(box, float) - [0, 0, 1, 1]), 0, last).astype(int).tolist()
        colour = tuple(colours[number])
        draw.rectangle((x0, y0, max(x0, x1), max(y0, y1)), outline=colour, width=line)
        if place < len(labels):
            width = int(font.getlength(labels[place])) + 4
            top = y0 - 13 if y0 >= 13 else y0
            draw.rectangle((x0, top, x0 + width, top + 12), fill=colour)
            draw.text((x0 + 2, top), labels[place], WHITE, font)
    return np.array(picture)
