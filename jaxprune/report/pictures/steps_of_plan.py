"""The patches left after each step of a plan."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxprune.report.pictures.base import Picture
from jaxprune.report.pictures.film_strip import film_strip, grouped_strip
from jaxprune.report.pictures.layout import tile, upscale
from jaxprune.report.pictures.text import label
from jaxprune.report.pictures.token_groups import token_groups

_MOST = 6  # steps that are drawn: more make a picture that no page can show


def steps_of_plan(images: np.ndarray, assign: Sequence[Any], grids: Sequence[tuple[int, ...]]) -> Picture:
    """Draws a row for each image: the image, then after every step its dropped and merged patches.

    Of more than six steps, six are drawn, evenly spaced and with the last, and their numbers written above. Clips are
    drawn as film strips, one below the other.

    Args:
      images: uint8 (n, h, w, 3), or clips, uint8 (n, frames, h, w, 3).
      assign: for each step the token that holds each patch, int (n, p); -1 = dropped.
      grids: for each step the grid of patches, (rows, columns), or of tubes, (layers, rows, columns).
    """
    step_ids = steps_drawn(len(assign))
    steps = [(np.asarray(assign[step]), grids[step]) for step in step_ids]
    if images.ndim == 5:
        return _strips(images, steps)
    cells = []
    for index, image in enumerate(images):
        cells.append(upscale(image))
        cells += [token_groups(upscale(image), tokens[index], (grid[0], grid[1])) for tokens, grid in steps]
    if len(step_ids) < len(assign):
        titles = ["image", *(f"step {step + 1} of {len(assign)}" for step in step_ids)]
        cells = [label(cell, titles[place % len(titles)]) for place, cell in enumerate(cells)]
    return tile(cells, columns=1 + len(step_ids))


def steps_drawn(count: int) -> list[int]:
    """Returns the steps of a plan that a picture shows.

    >>> steps_drawn(3), steps_drawn(12)
    ([0, 1, 2], [1, 3, 5, 7, 9, 11])
    """
    most = min(count, _MOST)
    return [(place + 1) * count // most - 1 for place in range(most)]


def _strips(clips: np.ndarray, steps: Sequence[tuple[np.ndarray, tuple[int, ...]]]) -> Picture:
    cells = []
    for index, clip in enumerate(clips):
        cells.append(film_strip(clip, None, steps[0][1]))
        cells += [grouped_strip(clip, tokens[index], grid) for tokens, grid in steps]
    return tile(cells, columns=1, pad=6)
