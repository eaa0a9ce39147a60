"""Hue, saturation and value of uint8 pixels as OpenCV computes them: hue from 0 to 179, the others to 255."""

import numpy as np
from jaxtyping import UInt8

_SHIFT = 12  # bits behind the point of the quotients
_HUES = 180
# The parts of a colour, numbered value, least, falling, rising, that red, green and blue take in each sixth of the hue.
_SECTORS = np.array([[0, 3, 1], [2, 0, 1], [1, 0, 3], [1, 2, 0], [3, 1, 0], [0, 1, 2]])


def _quotients(numerator: float) -> np.ndarray:
    """Whole numbers of numerator / i, for i from 0 to 255; 0 for i = 0."""
    table = np.zeros(256, np.int64)
    table[1:] = np.rint(numerator / np.arange(1, 256))
    return table


_SATURATION, _HUE = _quotients(255 << _SHIFT), _quotients((_HUES << _SHIFT) / 6.0)


def to_hsv(image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h w 3"]:
    """Returns hue, saturation and value of an RGB image.

    >>> to_hsv(np.array([[[255, 0, 0], [0, 128, 128]]], np.uint8)).tolist()
    [[[0, 255, 255], [90, 255, 128]]]
    """
    red, green, blue = np.moveaxis(image.astype(np.int64), -1, 0)
    value = np.maximum(np.maximum(red, green), blue)
    spread = value - np.minimum(np.minimum(red, green), blue)
    half = 1 << (_SHIFT - 1)
    saturation = (spread * _SATURATION[value] + half) >> _SHIFT
    sixth = np.where(
        value == red, green - blue, np.where(value == green, blue - red + 2 * spread, red - green + 4 * spread)
    )
    hue = (sixth * _HUE[spread] + half) >> _SHIFT
    hue = np.where(hue < 0, hue + _HUES, hue)
    return np.stack([hue, saturation, value], axis=-1).astype(np.uint8)


def to_rgb(hsv: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h w 3"]:
    """Returns the RGB image of hue, saturation and value.

    >>> to_rgb(np.array([[[0, 255, 255], [90, 255, 255]]], np.uint8)).tolist()
    [[[255, 0, 0], [0, 254, 255]]]
    """
    wide = hsv.astype(np.float32)
    hue, saturation, value = wide[..., 0] * np.float32(6 / _HUES), wide[..., 1], wide[..., 2]
    saturation, value = saturation * np.float32(1 / 255), value * np.float32(1 / 255)
    sector = np.floor(hue)
    part, sector = hue - sector, sector.astype(np.int64) % 6
    falling, rising = value * (1 - saturation * part), value * (1 - saturation + saturation * part)
    levels = np.stack([value, value * (1 - saturation), falling, rising], axis=-1)
    rgb = np.take_along_axis(levels, _SECTORS[sector], axis=-1)
    return np.clip(rgb * np.float32(255), 0, 255).astype(np.uint8)  # truncated, not rounded
