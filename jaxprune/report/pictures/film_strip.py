"""Clips as strips: a frame of each layer of tubes side by side, kept tubes bright and dropped ones dark."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped, UInt8
from PIL import Image

from jaxprune.report.pictures.base import Picture
from jaxprune.report.pictures.drawing import patches_to_pixels
from jaxprune.report.pictures.layout import tile, upscale
from jaxprune.report.pictures.token_groups import token_groups

SIDE = 128  # pixels of a frame's shorter side in a strip
_DARK = 0.2  # brightness of dropped tubes: one still recognises what was dropped

Clip = UInt8[np.ndarray, "t H W 3"]
Grid = tuple[int, int, int]  # tubes: layers in time, rows, columns; numbered layer by layer, then row by row


def film_strip(clip: Clip, kept: Bool[np.ndarray, " p"] | None, grid: Grid, pad: int = 4) -> Picture:
    """Draws a frame of each layer of tubes, with dropped tubes darkened.

    A tube spans several frames; the one that is drawn is its first.

    Args:
      clip: the frames.
      kept: True on the tubes that are kept; None: all.
      grid: the numbers of layers, rows and columns of tubes.
      pad: pixels between frames.
    """
    strip = joined(clip, grid[0])
    if kept is not None:
        bright = patches_to_pixels(unrolled(kept, grid), strip.shape, strip_grid(grid)).astype(bool)
        strip = np.where(bright[..., None], strip, np.round(strip * _DARK)).astype(np.uint8)
    return spaced(strip, grid[0], pad)


def grouped_strip(clip: Clip, assign: Int[np.ndarray, " p"], grid: Grid, pad: int = 4) -> Picture:
    """Draws a strip as `token_groups` draws an image: dropped tubes grey, a border around merged ones."""
    return drawn_strip(clip, lambda strip, cells: token_groups(strip, unrolled(assign, grid), cells), grid, pad)


def drawn_strip(clip: Clip, draw: Callable[[Picture, tuple[int, int]], Picture], grid: Grid, pad: int = 4) -> Picture:
    """Draws a strip by a function of pictures and their grids, which gets all frames as one picture."""
    return spaced(draw(joined(clip, grid[0]), strip_grid(grid)), grid[0], pad)


def joined(clip: Clip, layers: int) -> Picture:
    """Returns the first frame of each of `layers` equal parts of a clip, side by side without gaps."""
    return np.concatenate([_sized(clip[layer * len(clip) // layers]) for layer in range(layers)], axis=1)


def spaced(strip: Picture, layers: int, pad: int = 4) -> Picture:
    """Returns a strip of `joined` frames with gaps between them."""
    return tile(np.split(strip, layers, axis=1), columns=layers, pad=pad)


def strip_grid(grid: Grid) -> tuple[int, int]:
    """Returns the rows and columns of tubes in a strip of `joined` frames."""
    return grid[1], grid[0] * grid[2]


def unrolled(values: Any, grid: Grid) -> Shaped[np.ndarray, " p"]:
    """Returns one value a tube in the order of a strip's patches, row by row through all frames."""
    return np.asarray(values).reshape(grid).transpose(1, 0, 2).reshape(-1)


def still(images: UInt8[np.ndarray, "*t H W 3"]) -> Picture:
    """Returns a picture for a clip: four of its frames, in two rows. An image is returned as it is."""
    if images.ndim == 3:
        return images
    return tile([_sized(images[part * len(images) // 4]) for part in range(4)], columns=2, pad=2)


def _sized(frame: Picture) -> Picture:
    """A frame with a shorter side of `SIDE` pixels, or a smaller one enlarged by whole numbers to at least that."""
    height, width = frame.shape[:2]
    if min(height, width) <= SIDE:
        return upscale(frame, SIDE)
    scale = SIDE / min(height, width)
    size = round(width * scale), round(height * scale)
    return np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR))
