"""An image next to its most likely classes."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw

from jaxprune.report.pictures.base import BLUE, GREEN, INK, MUTED, WHITE, Picture
from jaxprune.report.pictures.layout import upscale
from jaxprune.report.pictures.text import fit_text, load_font


def prediction_card(
    image: Picture,
    class_names: Sequence[str],
    confidences: Float[np.ndarray, " c"],
    top: int = 5,
    truth: int | None = None,
) -> Picture:
    """Draws an image next to its most likely classes, each with a bar and its confidence.

    Args:
      image: the picture.
      class_names: one name per class.
      confidences: one value in [0, 1] per class.
      top: the number of classes to show.
      truth: the index of the true class, which is drawn in green, below the others if it is not among them.
    """
    image = upscale(image)
    order = np.argsort(-np.asarray(confidences, float), kind="stable")[:top]
    side, width, margin, row = image.shape[0], 300, 16, 34
    rows = len(order) + (truth is not None)  # all cards have the same size, whether or not the truth is in the top
    card = Image.new("RGB", (image.shape[1] + width, max(side, row * rows + 4)), WHITE)
    card.paste(Image.fromarray(image), (0, (card.height - side) // 2))
    draw, left, right = ImageDraw.Draw(card), image.shape[1] + margin, image.shape[1] + width - margin
    name_font, number_font = load_font(15), load_font(13)
    y = (card.height - row * rows) // 2 + 3
    for rank, index in enumerate(map(int, order)):
        confidence = float(confidences[index])
        ink = GREEN if index == truth else INK if rank == 0 else MUTED
        number = f"{confidence:.1%}"
        room = right - left - number_font.getlength(number) - 8
        draw.text((left, y), fit_text(class_names[index], name_font, int(room)), ink, name_font)
        draw.text((right, y + 1), number, ink, number_font, anchor="ra")
        draw.rectangle((left, y + 19, right, y + 24), (232, 236, 240))
        if confidence > 0:
            bar = GREEN if index == truth else BLUE if rank == 0 else (140, 176, 198)
            draw.rectangle((left, y + 19, left + max(1, round((right - left) * min(confidence, 1.0))), y + 24), bar)
        y += row
    if truth is not None and truth not in order:
        text = f"true class: {class_names[truth]} ({float(confidences[truth]):.1%})"
        draw.text((left, y), fit_text(text, number_font, right - left), GREEN, number_font)
    return np.array(card)
