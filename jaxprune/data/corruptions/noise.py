"""Noise: Gaussian, shot and impulse."""

from typing import Any

import numpy as np

NAMES = ("gaussian_noise", "shot_noise", "impulse_noise")


def gaussian_noise(image: np.ndarray, level: int, *, small: bool, rng: np.random.Generator, **_: Any) -> np.ndarray:
    """Adds normal noise."""
    scale = ((0.04, 0.06, 0.08, 0.09, 0.10) if small else (0.08, 0.12, 0.18, 0.26, 0.38))[level]
    return image + rng.normal(scale=scale, size=image.shape).astype(np.float32)


def shot_noise(image: np.ndarray, level: int, *, small: bool, rng: np.random.Generator, **_: Any) -> np.ndarray:
    """Adds Poisson noise; the setting is the mean number of photons of a white pixel."""
    photons = ((500, 250, 100, 75, 50) if small else (60, 25, 12, 5, 3))[level]
    return (rng.poisson(image * photons) / photons).astype(np.float32)


def impulse_noise(image: np.ndarray, level: int, *, small: bool, rng: np.random.Generator, **_: Any) -> np.ndarray:
    """Sets a share of all values to black or white."""
    share = ((0.01, 0.02, 0.03, 0.05, 0.07) if small else (0.03, 0.06, 0.09, 0.17, 0.27))[level]
    hit, white = rng.random(image.shape) < share, rng.random(image.shape) < 0.5
    return np.where(hit, white.astype(np.float32), image)
