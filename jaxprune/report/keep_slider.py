"""An interactive element of the report: the patches that scorers keep of each image, with a slider for how many."""

import base64
import html
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from jaxprune.report import Section
from jaxprune.report.data_uri import data_uri
from jaxprune.report.pictures.film_strip import joined, strip_grid, unrolled
from jaxprune.report.pictures.heatmap import heatmap


class Scored(NamedTuple):
    """An image and the scores of its patches.

    Attributes:
      caption: displayed below the image.
      image: the input of the scorers, an image or a clip.
      scores: {name of a scorer: one score per patch, larger = keep}.
    """

    caption: str
    image: UInt8[np.ndarray, "*t H W 3"]
    scores: Mapping[str, Float[np.ndarray, "p"]]


def keep_slider(section: Section, images: Sequence[Scored], grid: tuple[int, ...], keep_rate: float = 0.5) -> Section:
    """Appends each image next to the patches that scorers keep of it, with a slider for the keep rate and heat maps.

    Each image is embedded once, regardless of the number of scorers. Without JavaScript, only the images are shown. A
    clip is shown as a film strip, one below the other.

    Args:
      section: the section to append to.
      images: the images and their scores.
      grid: the number of rows and columns of patches; of clips, of layers, rows and columns of tubes.
      keep_rate: the initial position of the slider, in [0, 1].

    Returns:
      The section.
    """
    name = section.new_id("keep")
    cells_per_row = 7  # cells in a row of a wide screen
    label = f"of {math.prod(grid)} {'tubes' if len(grid) == 3 else 'patches'}"
    if len(grid) == 3:
        tubes = grid[0], grid[1], grid[2]
        images, grid, cells_per_row = [_as_strip(image, tubes) for image in images], strip_grid(tubes), 1
    rows, columns = grid
    figures = "\n".join(_figure(image, (rows, columns), cells_per_row) for image in images)
    return section.html(
        f'<div class="keep-slider" id="{name}">\n<style>{_file("css")}</style>\n'
        f'<div class="keep-controls"><label for="{name}-rate">Keep rate</label>'
        f'<input id="{name}-rate" type="range" min="1" max="100" value="{round(100 * keep_rate)}" '
        f'data-patches="{rows * columns}" data-label="{label}">'
        f'<output for="{name}-rate"></output>'
        f'<label><input type="checkbox"> Heat maps</label></div>\n'
        f"{figures}\n<script>{_file('js')}</script>\n</div>"
    )


def _file(end: str) -> str:
    return resources.files("jaxprune.report").joinpath(f"keep_slider.{end}").read_text(encoding="utf-8")


def _as_strip(scored: Scored, grid: tuple[int, int, int]) -> Scored:
    scores = {name: unrolled(values, grid) for name, values in scored.scores.items()}
    return Scored(scored.caption, joined(scored.image, grid[0]), scores)


def _figure(scored: Scored, grid: tuple[int, int], cells_per_row: int) -> str:
    height, width = scored.image.shape[:2]
    cells = [_cell(scored.caption, "")]
    for name, scores in scored.scores.items():
        order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
        places = np.empty(len(order), "<u2")
        places[order] = np.arange(len(order))
        # The heat map of an image with one pixel per patch lists the patches' colours.
        colours = heatmap(np.zeros((*grid, 3), np.uint8), np.asarray(scores, np.float64).reshape(grid), opacity=1.0)
        about = f'aria-label="patches of {html.escape(scored.caption)} kept by {html.escape(name)}" role="img"'
        data = f'data-places="{_base64(places)}" data-colours="{_base64(colours)}"'
        cells.append(_cell(name, f'<canvas width="{grid[1]}" height="{grid[0]}" {about} {data}></canvas>'))
    in_row = -(-len(cells) // -(-len(cells) // cells_per_row))  # no row with a single cell below a full one
    style = f"--photo:url({data_uri(scored.image)});--shape:{width}/{height};--cells:{in_row}"
    return f'<figure style="{style}" class="keep-cells">{"".join(cells)}</figure>'


def _cell(name: str, canvas: str) -> str:
    return f'<div><div class="keep-photo">{canvas}</div><small>{html.escape(name)}</small></div>'


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
