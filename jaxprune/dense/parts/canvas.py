"""Segmentation of images of several sizes by one program: images and maps lie at the top left of canvases.

How large each one is, is data, so that shapes are static. The results are those of `inference` for each image alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from jaxprune.dense.parts.inference import Maps, window_starts

Extents = Integer[Array, "b 2"]


def resized(
    maps: Float[Array, "b h w k"], extents: Extents, shapes: Extents, canvas: Sequence[int]
) -> Float[Array, "b H W k"]:
    """Resizes the part of each map that its image covers, bilinear (as `ops.resize`), to a place on a new canvas.

    >>> maps = jnp.arange(12.0).reshape(1, 3, 4, 1)
    >>> resized(maps, jnp.array([[2, 2]]), jnp.array([[1, 1]]), (1, 2))[0, ..., 0].tolist()
    [[2.5, 0.0]]

    Args:
      extents: rows and columns of each map that are its image's.
      shapes: rows and columns that they become; the canvas behind them is 0.
      canvas: height and width of the result.
    """
    rows, columns = (
        jax.vmap(_weights, in_axes=(0, 0, None, None))(extents[:, axis], shapes[:, axis], maps.shape[1 + axis], side)
        for axis, side in enumerate(canvas)
    )
    tall = jnp.einsum("bHh,bhwk->bHwk", rows, maps.astype(jnp.float32), precision="highest")
    return jnp.einsum("bWw,bHwk->bHWk", columns, tall, precision="highest")


def _weights(old: Array, new: Array, side: int, new_side: int) -> Array:
    """The (new_side, side) matrix that takes `old` places to `new`; rows behind `new` are 0."""
    index = jnp.arange(new_side)
    # In units of 1 / (2 new), in which half-pixel centres are whole numbers.
    centre, unit = jnp.maximum((2 * index + 1) * old - new, 0), 2 * jnp.maximum(new, 1)
    low = jnp.minimum(centre // unit, old - 1)
    high = jnp.minimum(low + 1, old - 1)
    share = (centre - low * unit) / unit
    places = jnp.arange(side)[None]
    matrix = jnp.where(places == low[:, None], 1 - share[:, None], 0.0)
    matrix += jnp.where(places == high[:, None], share[:, None], 0.0)
    return jnp.where((index < new)[:, None], matrix, 0.0)


def sliding(
    segment: Maps,
    images: Float[Array, "b h w c"],
    extents: Extents,
    *,
    window: Sequence[int],
    stride: Sequence[int],
) -> Float[Array, "b h w k"]:
    """The logits of windows that slide over each image, averaged where they overlap; see `inference.sliding`.

    Args:
      segment: the network, for images of the window's size.
      images: padded with 0, at least as large as a window.
      extents: their rows and columns without padding; where they are smaller than a window, it reaches beyond them.
    """
    sides, b = images.shape[1:3], len(images)
    counts = [len(window_starts(side, size, step)) for side, size, step in zip(sides, window, stride, strict=True)]
    # The first pixel of each window, for each image; those it does not need fall on its last one, with weight 0.
    starts, is_needed = [], []
    for axis, count in enumerate(counts):
        last = jnp.maximum(extents[:, axis] - window[axis], 0)[:, None]
        places = jnp.arange(count)[None] * stride[axis]
        starts.append(jnp.minimum(places, last))
        is_needed.append(places - stride[axis] < last)
    places = [(row, column) for row in range(counts[0]) for column in range(counts[1])]
    tops, lefts = (
        jnp.stack([starts[axis][:, place[axis]] for place in places], axis=1) for axis in (0, 1)
    )  # (b, windows)
    weights = jnp.stack([(is_needed[0][:, row] & is_needed[1][:, column]) for row, column in places], axis=1)
    cut = lambda image, top, left: jax.lax.dynamic_slice(image, (top, left, 0), (*window, image.shape[-1]))
    crops = jax.vmap(jax.vmap(cut, in_axes=(None, 0, 0)))(images, tops, lefts)
    logits = segment(crops.reshape(-1, *crops.shape[2:])).astype(jnp.float32)
    logits = logits.reshape(b, len(places), *logits.shape[1:])
    of_image = lambda *arguments: _added(*arguments, sides)
    return jax.vmap(of_image)(logits, tops, lefts, weights.astype(jnp.float32))


def _added(logits: Array, tops: Array, lefts: Array, weights: Array, sides: Sequence[int]) -> Array:
    """The mean of the windows of one image; 0 where there is none."""
    sums = jnp.zeros((*sides, logits.shape[-1]), jnp.float32)
    counts = jnp.zeros((*sides, 1), jnp.float32)
    for part, top, left, weight in zip(logits, tops, lefts, weights, strict=True):
        sums, counts = (
            jax.lax.dynamic_update_slice(
                total, jax.lax.dynamic_slice(total, (top, left, 0), (*part.shape[:2], total.shape[-1])) + added,
                (top, left, 0),
            )
            for total, added in ((sums, weight * part), (counts, jnp.full((*part.shape[:2], 1), weight)))
        )  # fmt: skip
    return sums / jnp.maximum(counts, 1.0)


def probabilities(
    segment: Maps,
    scales: Sequence[Mapping[str, Array]],
    shapes: Extents,
    canvas: Sequence[int],
    *,
    window: Sequence[int] = (),
    stride: Sequence[int] = (),
    flip: bool = False,
) -> Float[Array, "b H W k"]:
    """The mean of the class probabilities over scales, and over images and their mirrors.

    Args:
      segment: the network.
      scales: for each one `images`, normalised, and their `extents`.
      shapes: rows and columns of the original images.
      canvas: height and width of the result.
      window, stride: of windows that slide; () for whole images, which then fill their canvas.
      flip: whether mirrored images count too.
    """
    sums: Any = 0.0
    for scale in scales:
        images, extents = scale["images"], scale["extents"]
        for mirrors in (False, True) if flip else (False,):
            pixels = _mirror(images, extents) if mirrors else images
            if window:
                logits = sliding(segment, pixels, extents, window=window, stride=stride)
            else:
                logits = segment(pixels)
            logits = resized(logits, extents, shapes, canvas)
            share = jax.nn.softmax(_mirror(logits, shapes) if mirrors else logits, axis=-1)
            sums = sums + share
    return sums / (len(scales) * (2 if flip else 1))


def _mirror(pictures: Array, extents: Array) -> Array:
    places = jnp.arange(pictures.shape[2])[None]
    source = jnp.where(places < extents[:, 1:], extents[:, 1:] - 1 - places, places)
    return jax.vmap(lambda picture, columns: picture[:, columns])(pictures, source)
