"""ROIAlign (He et al., 2017): features of boxes, sampled from maps by bilinear interpolation, as exact products.

A bin's mean over a grid of bilinear samples is separable: out = Y · map · Xᵀ, where a row of Y or X holds the summed
weights of one bin's samples on an axis. So a pass is two products, and its gradient two more.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

# The canonical side of an object, in pixels, and the level that it is read from (Lin et al., 2017, eq. 1).
CANONICAL_SIDE, CANONICAL_LEVEL = 224.0, 4
_AT_ONCE = 64  # boxes


def axis_weights(
    start: Float[Array, "n"],
    end: Float[Array, "n"],
    size: int,
    bins: int,
    *,
    sampling_ratio: int = 0,
    aligned: bool = True,
) -> Float[Array, "n {bins} {size}"]:
    """The weight of every place of an axis in the mean of every bin.

    Samples lie in the middle of equal parts of a bin. One before -1 or behind `size` counts as 0, others are moved onto
    the map.

    Args:
      start, end: the boxes on this axis, in places of the map.
      size: number of places.
      sampling_ratio: samples of a bin; 0 = the bin's length, rounded up.
      aligned: places are areas, whose centre is half a place further; otherwise a box is at least one place long.
    """
    start, end = start.astype(jnp.float32), end.astype(jnp.float32)
    if aligned:
        start, end = start - 0.5, end - 0.5
    length = end - start if aligned else jnp.maximum(end - start, 1.0)
    step = length / bins
    count = jnp.full_like(step, sampling_ratio) if sampling_ratio else jnp.ceil(step)
    counts = jnp.maximum(count, 1.0)[:, None, None]
    first = (start[:, None] + jnp.arange(bins, dtype=jnp.float32)[None] * step[:, None])[:, :, None]
    sample = lambda s: first + _quotient((s + 0.5) * step[:, None, None], counts)

    def before(places: Array, included: bool) -> Array:
        """The number of samples before places, or at them."""
        spacing = jnp.maximum(step[:, None, None] / counts, 1e-12)
        guess = jnp.clip(jnp.floor((places - first) / spacing + 0.5), 0, count[:, None, None])
        total = jnp.maximum(guess - 2, 0.0)
        # Rounding may have moved the guess past a sample: the neighbours are compared themselves.
        for shift in (-2.0, -1.0, 0.0, 1.0):
            number = guess + shift
            at = sample(number)
            counted = (number >= 0) & (number < count[:, None, None]) & ((at <= places) if included else (at < places))
            total = total + counted
        return total

    borders = jnp.arange(size + 1, dtype=jnp.float32)[None, None]  # 0 … size
    inner = before(borders, False)  # samples before each place
    outside = before(jnp.full((1, 1, 1), -1.0), False)
    total = before(jnp.full((1, 1, 1), float(size)), True)
    spacing = step[:, None, None] / counts

    def run(low: Array, high: Array, origin: Array) -> Array:
        """The sum of the distances of the samples numbered low … high - 1 behind a place."""
        number = high - low
        return number * (sample(low) - origin) + spacing * number * (number - 1) / 2

    places = borders[..., :size]
    low, high = inner[..., :size], inner[..., 1:]  # samples in [i, i + 1)
    falling = (high - low) - run(low, high, places)
    rising = jnp.pad(run(low, high, places)[..., :-1], ((0, 0), (0, 0), (1, 0)))
    weights = falling + rising
    # Beyond the outer centres the whole weight is the border's.
    ends = (places == 0) * (inner[..., :1] - outside)
    last = places == size - 1
    behind = inner[..., size - 1 : size]
    weights = jnp.where(last, rising + (total - behind), weights) + ends
    return weights / counts


def _quotient(dividend: Array, divisor: Array) -> Array:
    """A quotient with its last bit right: XLA may multiply by a reciprocal, which moves a sample off its border."""
    quotient = dividend / divisor
    return quotient + (dividend - quotient * divisor) / divisor


def roi_align(
    maps: Float[Array, "h w c"],
    boxes: Float[Array, "n 4"],
    bins: int,
    *,
    scale: float,
    sampling_ratio: int = 0,
    aligned: bool = True,
) -> Float[Array, "n {bins} {bins} c"]:
    """The features of boxes on the map of one image; no gradient flows to the boxes.

    Args:
      boxes: x0, y0, x1, y1 in pixels of the image.
      bins: rows and columns of the result.
      scale: places of the map per pixel.
      sampling_ratio, aligned: see `axis_weights`.
    """
    height, width, _ = maps.shape
    corners = jax.lax.stop_gradient(boxes.astype(jnp.float32)) * scale
    options = {"sampling_ratio": sampling_ratio, "aligned": aligned}
    rows = axis_weights(corners[:, 1], corners[:, 3], height, bins, **options)
    columns = axis_weights(corners[:, 0], corners[:, 2], width, bins, **options)

    def one(weights: tuple[Array, Array]) -> Array:
        of_rows, of_columns = (part.astype(maps.dtype) for part in weights)
        lines = jnp.einsum("ph,hwc->pwc", of_rows, maps)
        return jnp.einsum("qw,pwc->pqc", of_columns, lines)

    # In parts: the lines of all boxes at once would fill gigabytes.
    return jax.lax.map(one, (rows, columns), batch_size=min(_AT_ONCE, max(len(boxes), 1)))


def levels_of(boxes: Float[Array, "n 4"], lowest: int, highest: int) -> Int[Array, "n"]:
    """The level of the pyramid that each box is read from, from 0 = `lowest` (Lin et al., 2017, eq. 1).

    Args:
      lowest, highest: log2 of the finest and of the coarsest stride.
    """
    sides = jnp.sqrt(jnp.maximum((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]), 0.0))
    levels = jnp.floor(CANONICAL_LEVEL + jnp.log2(sides / CANONICAL_SIDE + 1e-8))
    return (jnp.clip(levels, lowest, highest) - lowest).astype(jnp.int32)


def pool(
    pyramid: Sequence[Float[Array, "_ _ c"]],
    boxes: Float[Array, "n 4"],
    bins: int,
    *,
    strides: Sequence[float | int],
    sampling_ratio: int = 0,
) -> Float[Array, "n {bins} {bins} c"]:
    """The features of boxes of one image, each from the level of the pyramid that its size asks for.

    Args:
      strides: pixels per place of each level, doubling; levels are those of the nearest powers of two.
    """
    lowest, highest = (round(np.log2(stride)) for stride in (strides[0], strides[-1]))
    levels = levels_of(boxes, lowest, highest)
    parts = [
        jnp.where(
            (levels == level)[:, None, None, None],
            roi_align(maps, boxes, bins, scale=1 / stride, sampling_ratio=sampling_ratio),
            0,
        )
        for level, (maps, stride) in enumerate(zip(pyramid, strides, strict=True))
    ]
    return sum(parts[1:], parts[0])
