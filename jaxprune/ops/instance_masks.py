"""Masks of objects inside boxes: rasterised from polygons or bitmaps for a loss, and pasted into images."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxprune.errors import UserError
from jaxprune.ops.roi_align import axis_weights

# COCO draws polygons on a grid of fifths of a pixel.
_FINE = 5
_LARGEST = 2**20  # fine places; polygons of a large image in a tiny box reach further than int32 squares
THRESHOLD = 0.5


class Outlines(NamedTuple):
    """The polygons of one image's objects as edges, padded to a fixed number.

    Attributes:
      edges: x0, y0, x1, y1 of each edge, in pixels; an edge of padding has no length.
      polygons: the polygon of its object that each edge belongs to, from 0.
      numbers: 0, 1, … up to the largest number of polygons of an object.
    """

    edges: Float[Any, "*n m 4"]
    polygons: Int[Any, "*n m"]
    numbers: Int[Any, "*b p"]


def outlines(objects: list[list[np.ndarray]], num_objects: int, num_edges: int, num_polygons: int) -> Outlines:
    """Packs polygons, lists of (x, y, x, y, …) in pixels, into arrays of fixed shapes.

    Args:
      objects: the polygons of each object.

    Raises:
      UserError: there are more objects, edges or polygons, or a polygon of less than three corners.
    """
    edges = np.zeros((num_objects, num_edges, 4), np.float32)
    polygons = np.zeros((num_objects, num_edges), np.int32)
    _check_fits("objects of an image", len(objects), num_objects, "num_objects")
    for row, parts in enumerate(objects):
        _check_fits("polygons of an object", len(parts), num_polygons, "num_polygons")
        place = 0
        for number, part in enumerate(parts):
            points = np.asarray(part, np.float32).reshape(-1, 2)
            if len(points) < 3:
                raise UserError(f"A polygon of {len(points)} corners encloses nothing: leave it out.")
            _check_fits("edges of an object", place + len(points), num_edges, "num_edges")
            span = slice(place, place + len(points))
            edges[row, span] = np.concatenate([points, np.roll(points, -1, axis=0)], axis=1)
            polygons[row, span] = number
            place += len(points)
    return Outlines(edges, polygons, np.arange(num_polygons, dtype=np.int32))


def _check_fits(things: str, count: int, most: int, argument: str) -> None:
    if count > most:
        raise UserError(f"There are {count} {things}, and room for {most}: use a larger {argument}.")


def rasterized(
    edges: Float[Array, "m 4"], polygons: Int[Array, "m"], box: Float[Array, "4"], side: int, num_polygons: int
) -> Bool[Array, "{side} {side}"]:
    """The pixels of an object inside a box that is cut into side² places, by COCO's rule for polygons.

    The outline is drawn on a grid of fifths of a place, in whole numbers. Where it passes from one column of places
    to the next, it switches all places below; a polygon covers the places that are switched an odd number of times.

    Args:
      edges, polygons: see `Outlines`.
      num_polygons: the largest number of polygons of an object.
    """
    extent = jnp.maximum(jnp.stack([box[2] - box[0], box[3] - box[1]]), 0.1)
    points = (edges.reshape(-1, 2, 2) - box[None, None, :2]) * (side / extent)[None, None]
    # Towards zero, as a cast in C.
    fine = jnp.clip(jnp.trunc(_FINE * points + 0.5), -_LARGEST, _LARGEST).astype(jnp.int32)
    (x0, y0), (x1, y1) = fine[:, 0].T, fine[:, 1].T
    left, right = jnp.minimum(x0, x1), jnp.maximum(x0, x1)
    flat = jnp.abs(x1 - x0) >= jnp.abs(y1 - y0)
    # A column is entered between the fine places 5 c + 2 and 5 c + 3.
    before = (_FINE * jnp.arange(side, dtype=jnp.int32) + _FINE // 2)[None]
    crossed = (left[:, None] <= before) & (right[:, None] > before)

    def at(u: Array) -> Array:
        """The row of an edge that is flatter than a diagonal, at a column."""
        from_left = x0 < x1
        first, last = jnp.where(from_left, y0, y1), jnp.where(from_left, y1, y0)
        return _rounded(first[:, None], (last - first)[:, None], u - left[:, None], (right - left)[:, None])

    along_columns = jnp.minimum(at(before), at(before + 1))
    # A steep edge is drawn from the top row by row: it enters the column at the first row behind its middle.
    down = y0 < y1
    top, bottom = jnp.minimum(y0, y1), jnp.maximum(y0, y1)
    start, stop = jnp.where(down, x0, x1), jnp.where(down, x1, x0)
    height, width = (bottom - top)[:, None], (stop - start)[:, None]
    # Rightwards the first row with start + width · row / height + 1/2 >= before + 1; leftwards the first below it.
    rows = _first_row(width, height, before + 1 - start[:, None])
    along_rows = top[:, None] + rows - 1
    row = jnp.where(flat[:, None], along_columns, along_rows)
    # The place below (row + 1/2) / 5 - 1/2, rounded up.
    switched = jnp.clip(-((_FINE - 1 - 2 * row) // (2 * _FINE)), 0, side)
    # One counter per polygon, column and place; an edge that crosses nothing goes past the end.
    counters = num_polygons * side * (side + 1)
    index = (polygons[:, None] * side + jnp.arange(side, dtype=jnp.int32)[None]) * (side + 1) + switched
    index = jnp.where(crossed, index, counters)
    counts = jax.ops.segment_sum(jnp.ones(index.size, jnp.int32), index.reshape(-1), counters + 1)[:counters]
    odd = counts.reshape(num_polygons, side, side + 1).cumsum(-1)[..., :side] % 2
    return odd.any(0).T


def _rounded(start: Array, change: Array, step: Array, steps: Array) -> Array:
    """start + change · step / steps, rounded to the nearest whole number, halves up; exact."""
    steps = jnp.maximum(steps, 1)
    guess = jnp.round(change.astype(jnp.float32) * (step.astype(jnp.float32) / steps.astype(jnp.float32)))
    guess = guess.astype(jnp.int32)
    # The remainder is small, so that products beyond int32, which wrap around, leave it right.
    rest = 2 * (change * step - guess * steps) + steps
    return start + guess + rest // (2 * steps)


def _first_row(width: Array, height: Array, entered: Array) -> Array:
    """The first row of a steep edge from which on it is at `entered` or right of it, or left of it if it goes left.

    That is the smallest t with width · t / height + 1/2 >= entered, or < entered.
    """
    height = jnp.maximum(height, 1)
    rightwards = width > 0
    slope = jnp.maximum(jnp.abs(width), 1)
    # 2 · |width| · t >= height · (2 · entered - 1), or > height · (1 - 2 · entered) leftwards.
    factor = jnp.where(rightwards, 2 * entered - 1, 1 - 2 * entered)
    guess = jnp.ceil(height.astype(jnp.float32) * (factor.astype(jnp.float32) / (2 * slope).astype(jnp.float32)))
    guess = guess.astype(jnp.int32)
    rest = 2 * slope * guess - height * factor  # how far the guess is behind the first row, times 2 · |width|
    return jnp.where(rightwards, guess - rest // (2 * slope), guess - (rest - 1) // (2 * slope))


def targets_from_outlines(
    objects: Outlines, ids: Int[Array, "n"], boxes: Float[Array, "n 4"], side: int
) -> Bool[Array, "n {side} {side}"]:
    """The masks of objects inside boxes, from their polygons.

    Args:
      ids: the object of each box.
    """
    most = len(objects.numbers)
    of_box = lambda number, box: rasterized(objects.edges[number], objects.polygons[number], box, side, most)
    return jax.lax.map(lambda pair: of_box(*pair), (ids, boxes), batch_size=min(32, max(len(boxes), 1)))


def targets_from_bitmaps(
    bitmaps: Bool[Array, "m h w"], ids: Int[Array, "n"], boxes: Float[Array, "n 4"], side: int
) -> Bool[Array, "n {side} {side}"]:
    """The masks of objects inside boxes, from bitmaps of the whole image: ROIAlign, then at least one half.

    Args:
      ids: the object of each box.
    """
    _, height, width = bitmaps.shape
    boxes = boxes.astype(jnp.float32)
    rows = axis_weights(boxes[:, 1], boxes[:, 3], height, side)
    columns = axis_weights(boxes[:, 0], boxes[:, 2], width, side)

    def of_box(part: tuple[Array, Array, Array]) -> Array:
        number, of_rows, of_columns = part
        bitmap = bitmaps[number].astype(jnp.float32)
        return of_rows @ bitmap @ of_columns.T >= THRESHOLD

    return jax.lax.map(of_box, (ids, rows, columns), batch_size=min(8, max(len(boxes), 1)))


def paste(
    masks: Float[np.ndarray, "n s s"], boxes: Float[np.ndarray, "n 4"], shape: tuple[int, int]
) -> Float[np.ndarray, "n h w"]:
    """Probabilities of masks at the pixels of an image, on the host: bilinear at pixel centres, 0 outside of the box.

    An object covers the pixels with at least one half.

    Args:
      boxes: where each mask lies, in pixels of the image.
      shape: (height, width) of the image.
    """
    masks, boxes = np.asarray(masks, np.float32), np.asarray(boxes, np.float32)
    result = np.zeros((len(masks), *shape), np.float32)
    for mask, box, target in zip(masks, boxes, result, strict=True):
        (rows, down), (columns, right) = (
            _interpolation(box[1 - axis], box[3 - axis], shape[axis], mask.shape[axis]) for axis in (0, 1)
        )
        target[rows, columns] = down @ mask @ right.T
    return result


def _interpolation(start: np.floating, end: np.floating, size: int, side: int) -> tuple[slice, np.ndarray]:
    """The pixels of an axis that a mask reaches, and the weights of its places at them."""
    if not end > start:
        return slice(0, 0), np.zeros((0, side), np.float32)
    margin = (end - start) / side
    first, last = (int(np.clip(value, 0, size)) for value in (np.floor(start - margin), np.ceil(end + margin)))
    pixels = np.arange(first, last, dtype=np.float32) + np.float32(0.5)
    places = (pixels - start) / (end - start) * side - np.float32(0.5)
    weights = np.maximum(1 - np.abs(places[:, None] - np.arange(side, dtype=np.float32)[None]), 0)
    return slice(first, last), weights.astype(np.float32)
