"""Rasterises boxes, polygons and COCO segmentations into boolean masks."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from jaxprune.errors import UserError, quoted


def box(corners: Any, shape: tuple[int, int], *, relative: bool = False) -> np.ndarray:
    """Returns the pixels that a box touches, bool (h, w).

    Args:
      corners: its edges: top, left, bottom, right.
      shape: (height, width) of the image.
      relative: whether `corners` are fractions of the image's size rather than pixels.

    Raises:
      ValueError: they are not finite, or the box ends before it begins.
    """
    _require_edges(corners)
    scale = np.array([*shape, *shape]) if relative else 1.0
    top, left, bottom, right = np.asarray(corners, float) * scale
    inside = np.zeros(shape, bool)
    rows = slice(max(int(np.floor(top + 1e-6)), 0), max(int(np.ceil(bottom - 1e-6)), 0))
    inside[rows, max(int(np.floor(left + 1e-6)), 0) : max(int(np.ceil(right - 1e-6)), 0)] = True
    return inside


def _require_edges(corners: Any) -> None:
    """Checks that edges form a box; parts beyond the image are later cut off, since edges in files are rounded."""
    top, left, bottom, right = edges = [float(edge) for edge in corners]
    numbers = ", ".join(f"{edge:g}" for edge in edges)
    if not np.isfinite(edges).all():
        raise ValueError(f"the edges of its box, {numbers}, are not all finite")
    if bottom < top or right < left:
        raise ValueError(f"its box ends before it begins: top, left, bottom, right = {numbers}")


def polygon(points: Any, shape: tuple[int, int], *, relative: bool = False) -> np.ndarray:
    """Returns the pixels inside a polygon, including its outline, bool (h, w).

    Args:
      points: its vertices as a flat list: x1, y1, x2, y2, …
      shape: (height, width) of the image.
      relative: whether `points` are fractions of the image's size rather than pixels.

    Raises:
      ValueError: they are not finite.
    """
    corners = np.asarray(points, float).reshape(-1, 2) * (np.array(shape[::-1]) if relative else 1.0)
    if not np.isfinite(corners).all():
        raise ValueError("a polygon has coordinates that are not all finite")
    canvas = Image.new("1", (shape[1], shape[0]))
    ImageDraw.Draw(canvas).polygon([tuple(corner) for corner in corners.tolist()], fill=1, outline=1)
    return np.array(canvas)


def segmentation(value: Any, shape: tuple[int, int]) -> np.ndarray:
    """Returns the pixels of a COCO segmentation, bool (h, w).

    Args:
      value: A list of polygons, or uncompressed run lengths in column-major order.
      shape: (height, width) of the image.

    Raises:
      UserError: the run lengths are compressed, or not of that size.
    """
    if isinstance(value, Mapping):
        if not isinstance(value["counts"], list):
            raise UserError("Compressed run lengths of COCO cannot be read: use kind='boxes', or uncompressed ones.")
        if tuple(value["size"]) != tuple(shape) or sum(value["counts"]) != shape[0] * shape[1]:
            raise UserError(
                f"Run lengths of {quoted(sum(value['counts']))} pixels, of a picture of {quoted(value['size'])}, do "
                f"not fit one of {list(shape)}: they belong to another picture."
            )
        runs = np.repeat(np.arange(len(value["counts"])) % 2 == 1, value["counts"])
        return runs.reshape(value["size"], order="F")
    return functools.reduce(np.logical_or, (polygon(points, shape) for points in value), np.zeros(shape, bool))
