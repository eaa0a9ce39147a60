"""Label maps over images in the colours of their classes, with a legend."""

import colorsys
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from jaxprune.report.pictures.base import INK, WHITE, Colour, Picture
from jaxprune.report.pictures.text import load_font

VOID = 255  # pixels of no class, which stay as they are
_GOLDEN = 0.618034  # of the circle of hues, from a class to the next


def palette(count: int) -> tuple[Colour, ...]:
    """Returns colours that differ between neighbouring numbers, for classes without colours of their own.

    >>> len(set(palette(150)))
    150
    """
    rgb = lambda i: colorsys.hsv_to_rgb(i * _GOLDEN % 1.0, (0.85, 0.6, 0.95)[i % 3], (0.9, 0.75, 0.6, 1.0)[i % 4])
    return tuple(tuple(round(255 * part) for part in rgb(i)) for i in range(count))  # type: ignore[misc]


def overlay(
    image: Picture, label_map: UInt8[np.ndarray, "h w"], colours: Sequence[Colour], opacity: float = 0.6
) -> Picture:
    """Draws classes over an image, of the size of the map; pixels without a class show the image.

    Args:
      image: of any size.
      colours: one for each class.
      opacity: of the colours.
    """
    height, width = label_map.shape
    base = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR), np.float32)
    has_class = label_map < len(colours)
    tint = np.asarray(colours, np.float32)[np.where(has_class, label_map, 0)]
    mixed = np.where(has_class[..., None], base + opacity * (tint - base), base)
    return np.round(mixed).astype(np.uint8)


def legend(names: Sequence[str], colours: Sequence[Colour], width: int = 640) -> Picture:
    """Draws the names of classes next to their colours, in rows.

    Args:
      width: of the picture, in pixels.
    """
    font, row, box, gap = load_font(15), 24, 16, 18
    places, x, y = [], 4, 4
    for name in names:
        room = box + 6 + int(font.getlength(name)) + gap
        if x > 4 and x + room > width:
            x, y = 4, y + row
        places.append((x, y))
        x += room
    picture = Image.new("RGB", (width, y + row), WHITE)
    draw = ImageDraw.Draw(picture)
    for name, colour, (x, y) in zip(names, colours, places, strict=True):
        draw.rectangle((x, y, x + box, y + box), tuple(colour), INK)
        draw.text((x + box + 6, y - 1), name, INK, font)
    return np.array(picture)
