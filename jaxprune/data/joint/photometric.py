"""Photometric distortion as published for segmentation (SSD's; mmsegmentation): four steps, each half of the time."""

from typing import Any

import numpy as np
from jaxtyping import UInt8

from jaxprune.data.joint.hsv import to_hsv, to_rgb

BRIGHTNESS = 32.0
CONTRAST = SATURATION = (0.5, 1.5)
HUE = 18
_HUES = 180


def distorted(image: UInt8[np.ndarray, "h w 3"], rng: Any) -> UInt8[np.ndarray, "h w 3"]:
    """Changes brightness, contrast, saturation and hue at random; a coin decides if contrast comes second or last.

    Each result is clipped and truncated to whole numbers.

    Args:
      rng: a NumPy generator.
    """
    coin = lambda: bool(rng.integers(0, 2))
    if coin():
        image = _scaled(image, 1.0, rng.uniform(-BRIGHTNESS, BRIGHTNESS))
    contrast_second = coin()
    if contrast_second and coin():
        image = _scaled(image, rng.uniform(*CONTRAST))
    if coin():
        hsv = to_hsv(image)
        hsv[..., 1] = _scaled(hsv[..., 1], rng.uniform(*SATURATION))
        image = to_rgb(hsv)
    if coin():
        hsv = to_hsv(image)
        hsv[..., 0] = (hsv[..., 0].astype(int) + int(rng.integers(-HUE, HUE))) % _HUES
        image = to_rgb(hsv)
    if not contrast_second and coin():
        image = _scaled(image, rng.uniform(*CONTRAST))
    return image


def _scaled(values: np.ndarray, factor: float, offset: float = 0.0) -> np.ndarray:
    scaled = values.astype(np.float32) * np.float32(factor) + np.float32(offset)
    return np.clip(scaled, 0, 255).astype(np.uint8)
