"""Text in pictures."""

from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from jaxprune.report.pictures.base import INK, WHITE, Colour, Picture
from jaxprune.text import writable


def load_font(size: int) -> Any:
    """Returns Pillow's default font."""
    return ImageFont.load_default(size)


def fit_text(text: str, font: Any, width: int) -> str:
    """Returns the text, shortened with an ellipsis if it is wider than `width` pixels."""
    text = writable(text)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text.rstrip() + "..."


def label(image: Picture, text: str, size: int = 14, background: Colour = WHITE) -> Picture:
    """Returns the picture with a strip above it that contains `text`."""
    width = image.shape[1]
    strip = Image.new("RGB", (width, round(size * 1.7)), background)
    font = load_font(size)
    ImageDraw.Draw(strip).text((width / 2, strip.height / 2), fit_text(text, font, width), INK, font, anchor="mm")
    return np.concatenate([np.asarray(strip), image])
