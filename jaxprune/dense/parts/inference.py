"""Segmentation of images larger than a network's: the whole image, or windows that slide over it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.ops.resize import resize

Maps = Callable[[Any], Any]  # images (b, h, w, c) to logits (b, h, w, k)


def window_starts(side: int, window: int, stride: int) -> list[int]:
    """The first pixel of each window along an axis; the last window ends at the border.

    >>> window_starts(112, 96, 64), window_starts(512, 512, 341)
    ([0, 16], [0])
    """
    count = max(side - window + stride - 1, 0) // stride + 1
    return [min(i * stride, side - window) for i in range(count)]


def whole(segment: Maps, images: Float[Array, "b h w c"]) -> Float[Array, "b h w k"]:
    """The logits of images that the network takes as they are."""
    return segment(images)


def sliding(
    segment: Maps,
    images: Float[Array, "b h w c"],
    *,
    window: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
) -> Float[Array, "b h w k"]:
    """The logits of windows that slide over images, averaged where they overlap; all windows make one batch.

    Args:
      segment: the network, or its compiled form, for images of the window's size.
      window: its side, or (height, width).
      stride: likewise; by default two thirds of the window, rounded down (341 of 512, 426 of 640).

    Raises:
      UserError: the images are smaller than a window.
    """
    height, width = (window, window) if isinstance(window, int) else window
    stride = (height * 2 // 3, width * 2 // 3) if stride is None else stride
    down, right = (stride, stride) if isinstance(stride, int) else stride
    b, rows, columns, _ = images.shape
    require_cover((height, width), (down, right))
    if rows < height or columns < width:
        raise UserError(
            f"Images of {rows}x{columns} pixels are smaller than a window of {height}x{width}: enlarge them first, or "
            "use whole-image inference."
        )
    tops, lefts = window_starts(rows, height, down), window_starts(columns, width, right)
    places = [(top, left) for top in tops for left in lefts]
    crops = jnp.concatenate([images[:, top : top + height, left : left + width] for top, left in places])
    logits = segment(crops).astype(jnp.float32)
    sums = jnp.zeros((b, rows, columns, logits.shape[-1]), jnp.float32)
    for (top, left), part in zip(places, jnp.split(logits, len(places)), strict=True):
        sums = sums.at[:, top : top + height, left : left + width].add(part)
    counts = np.outer(_counts(tops, height, rows), _counts(lefts, width, columns))
    return sums / jnp.asarray(counts, jnp.float32)[None, :, :, None]


def require_cover(window: Sequence[int], stride: Sequence[int]) -> None:
    """Checks that windows of a size, so far apart, leave no pixels out.

    Raises:
      UserError: a stride is larger than its window, or not above 0.
    """
    if any(not 0 < step <= side for side, step in zip(window, stride, strict=True)):
        raise UserError(
            f"stride={tuple(stride)} of windows of {window[0]}x{window[1]} pixels would leave pixels out: use strides "
            "from 1 to the window's sides."
        )


def _counts(starts: Sequence[int], window: int, side: int) -> np.ndarray:
    counts = np.zeros(side)
    for start in starts:
        counts[start : start + window] += 1
    return counts


def probabilities(logits: Float[Array, "b h w k"], shape: Sequence[int]) -> Float[Array, "b H W k"]:
    """The softmax of logits, resized to the original size of the images first, bilinear.

    Args:
      shape: height and width of the original images.
    """
    return jax.nn.softmax(resize(logits, (int(shape[0]), int(shape[1])), "bilinear"), axis=-1)


def mirrored(segment: Maps, images: Float[Array, "b h w c"]) -> Float[Array, "b h w k"]:
    """The maps of mirrored images, mirrored back."""
    return segment(images[:, :, ::-1])[:, :, ::-1]
