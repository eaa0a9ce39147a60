"""Boxes as (x0, y0, x1, y1) in continuous pixels: areas, overlaps, clipping, and the offsets that a detector predicts.

A pixel i spans [i, i + 1), so the whole image is (0, 0, width, height). All results are float32.
"""

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

# The largest predicted log of a side's ratio, log(1000 / 16) as published.
MAX_LOG_RATIO = math.log(1000.0 / 16.0)
RPN_WEIGHTS = (1.0, 1.0, 1.0, 1.0)
BOX_WEIGHTS = (10.0, 10.0, 5.0, 5.0)


def areas(boxes: Float[Array, "*n 4"]) -> Float[Array, "*n"]:
    """Width times height, in square pixels."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def nonempty(boxes: Float[Array, "*n 4"]) -> Bool[Array, "*n"]:
    """Whether both sides are longer than 0; False for boxes with NaN."""
    return (boxes[..., 2] > boxes[..., 0]) & (boxes[..., 3] > boxes[..., 1])


def iou(first: Float[Array, "m 4"], second: Float[Array, "n 4"]) -> Float[Array, "m n"]:
    """Intersection over union of every pair; 0 where boxes do not intersect.

    >>> import jax.numpy as jnp
    >>> iou(jnp.array([[0.0, 0, 2, 2]]), jnp.array([[1.0, 0, 3, 2], [2, 2, 3, 3]])).round(3).tolist()
    [[0.3330000042915344, 0.0]]
    """
    low = jnp.maximum(first[:, None, :2], second[None, :, :2])
    high = jnp.minimum(first[:, None, 2:], second[None, :, 2:])
    common = jnp.prod(jnp.maximum(high - low, 0.0), axis=-1)
    union = areas(first)[:, None] + areas(second)[None, :] - common
    return jnp.where(common > 0, common / jnp.where(common > 0, union, 1.0), 0.0)


def clip(boxes: Float[Array, "*n 4"], size: Float[Array, "2"]) -> Float[Array, "*n 4"]:
    """Moves corners into the image.

    Args:
      size: (height, width) of the image.
    """
    most = jnp.stack([size[1], size[0], size[1], size[0]]).astype(boxes.dtype)
    return jnp.clip(boxes, 0.0, most[*(None,) * (boxes.ndim - 1)])


def encode(
    boxes: Float[Array, "*n 4"], targets: Float[Array, "*n 4"], weights: Sequence[float] = BOX_WEIGHTS
) -> Float[Array, "*n 4"]:
    """The offsets that lead from boxes to targets (Girshick et al., 2014): shifts in sides, and logs of side ratios.

    Both boxes must have an area.

    Args:
      weights: factors of (x shift, y shift, width, height).
    """
    x, y, w, h = _centres(boxes)
    u, v, s, t = _centres(targets)
    offsets = jnp.stack([(u - x) / w, (v - y) / h, jnp.log(s / w), jnp.log(t / h)], axis=-1)
    return offsets * _row(weights, offsets)


def decode(
    boxes: Float[Array, "*n 4"],
    offsets: Float[Array, "*n _"],
    weights: Sequence[float] = BOX_WEIGHTS,
) -> Float[Array, "*n _"]:
    """The boxes that offsets lead to, the inverse of `encode`.

    Args:
      offsets: those of several classes side by side, four for each.
      weights: factors of (x shift, y shift, width, height), by which offsets are divided.
    """
    x, y, w, h = (part[..., None] for part in _centres(boxes.astype(jnp.float32)))
    parts = offsets.astype(jnp.float32).reshape(*offsets.shape[:-1], -1, 4)
    parts = parts / _row(weights, parts)
    width = jnp.exp(jnp.minimum(parts[..., 2], MAX_LOG_RATIO)) * w
    height = jnp.exp(jnp.minimum(parts[..., 3], MAX_LOG_RATIO)) * h
    u, v = parts[..., 0] * w + x, parts[..., 1] * h + y
    corners = jnp.stack([u - 0.5 * width, v - 0.5 * height, u + 0.5 * width, v + 0.5 * height], axis=-1)
    return corners.reshape(offsets.shape)


def _centres(boxes: Array) -> tuple[Array, Array, Array, Array]:
    width, height = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
    return boxes[..., 0] + 0.5 * width, boxes[..., 1] + 0.5 * height, width, height


def _row(weights: Sequence[float], like: Array) -> Array:
    return jnp.asarray(np.asarray(weights, np.float32))[*(None,) * (like.ndim - 1)]
