"""Resizing with the conventions of `torch.nn.functional.interpolate`, which `jax.image.resize` does not follow.

Every axis is one product with a dense (out × in) matrix precomputed on the host, so a resize differentiates, fuses and
shards like any matrix product.
"""

import functools
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped

from jaxprune.errors import UserError, unknown
from jaxprune.ops.tracing import RESAMPLING

METHODS = ("bicubic", "bilinear", "nearest")
METHODS_3D = ("trilinear", "nearest")


def resize(
    x: Shaped[Array, "b h w c"],
    shape: tuple[int, int],
    method: Literal["bicubic", "bilinear", "nearest"] = "bicubic",
    align_corners: bool = False,
    antialias: bool = False,
) -> Shaped[Array, "b H W c"]:
    """Resizes NHWC images or maps as torch does.

    Args:
      x: floating-point maps ("nearest" takes any dtype).
      shape: height and width of the result.
      method: "bicubic" (a = -0.75 without, -0.5 with antialiasing), "bilinear" or "nearest".
      align_corners: align the corner pixels of both grids; otherwise pixels are areas (half-pixel centres).
      antialias: widens the filter when shrinking (only with `align_corners=False`).

    Raises:
      UserError: the method is unknown, or the options exclude each other.
    """
    if method not in METHODS:
        raise unknown("resize method", method, METHODS)
    if antialias and (align_corners or method == "nearest"):
        raise UserError(
            "antialias=True is defined for bicubic and bilinear resizing with align_corners=False only; "
            f"it was asked for with method={method!r} and align_corners={align_corners}."
        )
    return _resize(x, shape, method, align_corners, antialias)


def resize_3d(
    x: Shaped[Array, "b t h w c"],
    shape: tuple[int, int, int],
    method: Literal["trilinear", "nearest"] = "trilinear",
    align_corners: bool = False,
) -> Shaped[Array, "b T H W c"]:
    """Resizes maps of a video, (time, height, width), as torch does; see `resize`."""
    if method not in METHODS_3D:
        raise unknown("resize method", method, METHODS_3D)
    return _resize(x, shape, "bilinear" if method == "trilinear" else method, align_corners, False)


@jax.named_scope(RESAMPLING)
def _resize(x: Array, shape: tuple[int, ...], method: str, align_corners: bool, antialias: bool) -> Array:
    result = x if method == "nearest" else x.astype(jnp.promote_types(x.dtype, jnp.float32))
    for axis, (old, new) in enumerate(zip(x.shape[1:-1], shape, strict=True), start=1):
        if old == new:
            continue
        if method == "nearest":
            result = jnp.take(result, _nearest_ids(old, new), axis=axis)
        else:
            weights = _weights(old, new, method, align_corners, antialias).astype(result.dtype)
            # Reduced-precision matrix products of accelerators would lose digits of a position table.
            result = jnp.tensordot(result, weights, axes=(axis, 1), precision="highest")
            result = jnp.moveaxis(result, -1, axis)
    return result.astype(x.dtype)


def _nearest_ids(old: int, new: int) -> np.ndarray:
    """The floor of each scaled index, computed in float32 to reproduce torch's rounding."""
    ids = np.floor(np.arange(new, dtype=np.float32) * np.float32(old / new)).astype(np.int32)
    return np.minimum(ids, old - 1)


@functools.lru_cache(maxsize=256)
def _weights(old: int, new: int, method: str, align_corners: bool, antialias: bool) -> np.ndarray:
    """The (new, old) matrix of an axis, float64."""
    if antialias:
        return _antialias_weights(old, new, method)
    index = np.arange(new)
    if align_corners:
        centre = index * ((old - 1) / (new - 1) if new > 1 else 0.0)
    else:
        centre = (index + 0.5) * (old / new) - 0.5
    if method == "bilinear":
        centre = np.maximum(centre, 0.0)
    base = np.floor(centre).astype(int)
    weights = np.zeros((new, old))
    kernel, taps = (_triangle, (0, 1)) if method == "bilinear" else (functools.partial(_cubic, a=-0.75), (-1, 0, 1, 2))
    for tap in taps:
        # Edge padding: the weight of pixels beyond the border goes to the border pixel.
        np.add.at(weights, (index, np.clip(base + tap, 0, old - 1)), kernel(centre - (base + tap)))
    return weights


def _antialias_weights(old: int, new: int, method: str) -> np.ndarray:
    """Pillow's filter: as wide as an output pixel when shrinking, cut at the border and normalised."""
    kernel, radius = (_triangle, 1.0) if method == "bilinear" else (functools.partial(_cubic, a=-0.5), 2.0)
    scale = old / new
    width = max(scale, 1.0)
    weights = np.zeros((new, old))
    for i in range(new):
        centre = scale * (i + 0.5)
        low = max(math.floor(centre - radius * width + 0.5), 0)
        high = min(math.floor(centre + radius * width + 0.5), old)
        row = kernel((np.arange(low, high) - centre + 0.5) / width)
        weights[i, low:high] = row / row.sum()
    return weights


def _triangle(t: np.ndarray) -> np.ndarray:
    return np.maximum(1.0 - np.abs(t), 0.0)


def _cubic(t: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel."""
    t = np.abs(t)
    inner = ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0
    outer = ((a * t - 5.0 * a) * t + 8.0 * a) * t - 4.0 * a
    return np.where(t <= 1.0, inner, np.where(t < 2.0, outer, 0.0))
