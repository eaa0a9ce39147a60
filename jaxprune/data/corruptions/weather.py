"""Weather: snow, frost, fog and brightness. Images are float (h, w, 3) from 0 to 1."""

from typing import Any

import numpy as np
from matplotlib import colors

from jaxprune.data.corruptions.blur import along_path, gaussian

NAMES = ("snow", "frost", "fog", "brightness")

# Mean and spread of the flakes' brightness, their size, the visibility threshold, length and width of their path, and
# the weight of the image.
_SNOW = {
    True: (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    False: (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
}
# Weights of the image and of the frost.
_FROST = {
    True: ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    False: ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
}
# Density of the fog, and decay of its fine structure.
_FOG = {
    True: ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    False: ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
}


def snow(image: np.ndarray, level: int, *, small: bool, scale: float, rng: np.random.Generator, **_: Any) -> np.ndarray:
    """Lays streaks of flakes over a paler image, once upright and once upside down."""
    mean, spread, size, least, length, sigma, stays = _SNOW[small][level]
    grows = 1 if small else scale
    flakes = _enlarged(rng.normal(mean, spread, image.shape[:2]).astype(np.float32), size)
    flakes = np.where(flakes < least, 0, np.clip(flakes, 0, 1))[..., None]
    streaks = along_path(flakes, max(1, round(length * grows)), sigma * grows, rng.uniform(-135, -45))
    grey = image @ np.array([0.299, 0.587, 0.114], np.float32)
    pale = np.maximum(image, grey[..., None] * 1.5 + 0.5)
    return stays * image + (1 - stays) * pale + streaks + np.rot90(streaks, 2)


def frost(image: np.ndarray, level: int, *, small: bool, rng: np.random.Generator, **_: Any) -> np.ndarray:
    """Adds crystals of ice: ridges of noise at several scales, bluish white."""
    image_weight, frost_weight = _FROST[small][level]
    ridges = 1 - np.abs(2 * plasma(image.shape[:2], 1.6, rng) - 1)
    crystals = np.clip(ridges**4 + 0.35 * plasma(image.shape[:2], 1.3, rng), 0, 1)
    return image_weight * image + frost_weight * crystals[..., None] * np.array([0.85, 0.93, 1.0], np.float32)


def fog(image: np.ndarray, level: int, *, small: bool, rng: np.random.Generator, **_: Any) -> np.ndarray:
    """Adds plasma noise, and reduces the contrast so that the brightest pixel is kept."""
    thick, decay = _FOG[small][level]
    brightest = image.max()
    return (image + thick * plasma(image.shape[:2], decay, rng)[..., None]) * brightest / (brightest + thick)


def brightness(image: np.ndarray, level: int, *, small: bool, **_: Any) -> np.ndarray:
    """Adds to the HSV value of each pixel."""
    added = ((0.05, 0.1, 0.15, 0.2, 0.3) if small else (0.1, 0.2, 0.3, 0.4, 0.5))[level]
    hsv = colors.rgb_to_hsv(np.clip(image, 0, 1))
    hsv[..., 2] = np.clip(hsv[..., 2] + added, 0, 1)
    return colors.hsv_to_rgb(hsv).astype(np.float32)


def plasma(shape: tuple[int, ...], decay: float, rng: np.random.Generator) -> np.ndarray:
    """Returns a diamond-square fractal (Fournier et al., 1982), from 0 to 1, cropped to `shape`.

    Args:
      decay: divisor of the noise from scale to scale.
    """
    side = 1 << (max(shape) - 1).bit_length()
    field, step, wobble = np.zeros((side, side), np.float32), side, 100.0
    noise = lambda mean: mean / 4 + wobble * rng.uniform(-1, 1, mean.shape)
    while step >= 2:
        half = step // 2
        # The grid is a torus: row `side` is row 0.
        corners = field[::step, ::step]
        sums = corners + np.roll(corners, -1, 0)
        field[half::step, half::step] = noise(sums + np.roll(sums, -1, 1))
        centres = field[half::step, half::step]
        field[::step, half::step] = noise(centres + np.roll(centres, 1, 0) + corners + np.roll(corners, -1, 1))
        field[half::step, ::step] = noise(centres + np.roll(centres, 1, 1) + corners + np.roll(corners, -1, 0))
        step, wobble = half, wobble / decay
    field -= field.min()
    return (field / field.max())[: shape[0], : shape[1]]


def _enlarged(flakes: np.ndarray, factor: float) -> np.ndarray:
    """Enlarges the middle of a picture to its full size by nearest neighbours, with smoothing before and after."""
    rows, columns = (((np.arange(side) - side / 2) / factor + side / 2).astype(int) for side in flakes.shape)
    return gaussian(flakes[rows[:, None], columns[None]], factor / 4)
