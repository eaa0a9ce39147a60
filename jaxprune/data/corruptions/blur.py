"""Blur: out of focus, through frosted glass, by motion, by zooming. Images are float (h, w, 3) from 0 to 1."""

from typing import Any

import numpy as np
import scipy

NAMES = ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur")

# Radius of the disk, and the width of the Gaussian that smooths its edge.
_DEFOCUS = {
    True: ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    False: ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
}
# Width of the Gaussian, largest displacement of a pixel, number of iterations.
_GLASS = {
    True: ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    False: ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
}
# Length of the path, and the width of the Gaussian along it.
_MOTION = {
    True: ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    False: ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
}
# The largest factor, and the step between factors.
_ZOOM = {
    True: ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    False: ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
}


def gaussian(image: np.ndarray, sigma: float) -> np.ndarray:
    """Smooths rows and columns, not channels."""
    return scipy.ndimage.gaussian_filter(image, (sigma, sigma, 0)[: image.ndim], mode="nearest")


def defocus_blur(image: np.ndarray, level: int, *, small: bool, scale: float, **_: Any) -> np.ndarray:
    """Averages over a disk."""
    radius, smooth = _DEFOCUS[small][level]
    radius *= 1 if small else scale
    reach = np.arange(-max(8, int(np.ceil(radius))), max(8, int(np.ceil(radius))) + 1)
    disk = scipy.ndimage.gaussian_filter(
        (reach[:, None] ** 2 + reach[None] ** 2 <= radius**2).astype(np.float32), smooth
    )
    disk = disk[np.ix_(disk.sum(1) > 0, disk.sum(0) > 0)] / disk.sum()
    return np.stack(
        [scipy.ndimage.convolve(image[..., c], disk, mode="mirror") for c in range(image.shape[2])], axis=-1
    )


def glass_blur(
    image: np.ndarray, level: int, *, small: bool, scale: float, rng: np.random.Generator, **_: Any
) -> np.ndarray:
    """Replaces each pixel by a random neighbour, between two Gaussian blurs."""
    sigma, reach, times = _GLASS[small][level]
    sigma, reach = (sigma, reach) if small else (sigma * scale, max(1, round(reach * scale)))
    moved = gaussian(image, sigma)
    rows, columns = np.indices(image.shape[:2])
    for _time in range(times):
        down, across = rng.integers(-reach, reach + 1, (2, *image.shape[:2]))
        moved = moved[np.clip(rows + down, 0, image.shape[0] - 1), np.clip(columns + across, 0, image.shape[1] - 1)]
    return gaussian(moved, sigma)


def motion_blur(
    image: np.ndarray, level: int, *, small: bool, scale: float, rng: np.random.Generator, **_: Any
) -> np.ndarray:
    """Averages along a path at up to 45° from the horizontal."""
    length, sigma = _MOTION[small][level]
    grows = 1 if small else scale
    return along_path(image, max(1, round(length * grows)), sigma * grows, rng.uniform(-45, 45))


def zoom_blur(image: np.ndarray, level: int, *, small: bool, **_: Any) -> np.ndarray:
    """Averages the image with its centre, enlarged by rising factors."""
    largest, step = _ZOOM[small][level]
    factors = np.arange(1, largest, step)
    return (image + sum(_zoomed(image, factor) for factor in factors)) / (len(factors) + 1)


def along_path(image: np.ndarray, length: int, sigma: float, degrees: float) -> np.ndarray:
    """Averages over 2 · `length` + 1 pixels of a straight path, weighted by half a Gaussian that begins at each pixel.

    Args:
      sigma: standard deviation of the Gaussian, in pixels.
      degrees: angle of the path from the horizontal.
    """
    angle = np.deg2rad(degrees)
    steps = np.arange(2 * length + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    blurred = np.zeros_like(image)
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        # Rounded to pixels, as in ImageMagick.
        down, across = round(step * np.sin(angle)), round(step * np.cos(angle))
        blurred += np.float32(weight) * _shifted(image, down, across)
    return blurred


def _shifted(image: np.ndarray, down: int, across: int) -> np.ndarray:
    rows = np.clip(np.arange(image.shape[0]) - down, 0, image.shape[0] - 1)
    columns = np.clip(np.arange(image.shape[1]) - across, 0, image.shape[1] - 1)
    return image[rows[:, None], columns[None]]


def _zoomed(image: np.ndarray, factor: float) -> np.ndarray:
    # Linear interpolation of rows, then of columns, as products with matrices.
    rows, columns = (_linear(side, factor) for side in image.shape[:2])
    return np.einsum("rh,hwc,vw->rvc", rows, image, columns, optimize=True)


def _linear(side: int, factor: float) -> np.ndarray:
    centre = (side - 1) / 2
    places = centre + (np.arange(side) - centre) / factor
    return np.maximum(1 - np.abs(places[:, None] - np.arange(side)[None]), 0).astype(np.float32)
