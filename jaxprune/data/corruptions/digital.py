"""Digital corruptions: low contrast, elastic distortion, pixelation, JPEG compression."""

import io
from typing import Any

import numpy as np
import scipy
from PIL import Image

from jaxprune.data import crop_resize

NAMES = ("contrast", "elastic_transform", "pixelate", "jpeg_compression")

# Relative to the side: displacement of pixels, smoothness of the field, displacement of three corners of the image.
_ELASTIC = {
    True: ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    False: ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
}


def contrast(image: np.ndarray, level: int, *, small: bool, **_: Any) -> np.ndarray:
    """Brings each channel closer to its mean."""
    kept = ((0.75, 0.5, 0.4, 0.3, 0.15) if small else (0.4, 0.3, 0.2, 0.1, 0.05))[level]
    mean = image.mean((0, 1), keepdims=True)
    return (image - mean) * kept + mean


def elastic_transform(image: np.ndarray, level: int, *, small: bool, rng: np.random.Generator, **_: Any) -> np.ndarray:
    """Moves pixels by an affine map and a smooth random field (Simard et al., 2003)."""
    alpha, sigma, affine = (part * min(image.shape[:2]) for part in _ELASTIC[small][level])
    height, width = image.shape[:2]
    centre, reach = np.array([height, width], np.float32) // 2, min(height, width) // 3
    corners = centre + reach * np.array([[1, 1], [1, -1], [-1, -1]], np.float32)
    moved = corners + rng.uniform(-affine, affine, corners.shape)
    # Source rows and columns for each output pixel.
    solved = np.linalg.solve(np.c_[moved, np.ones(3)], corners)
    places = np.stack([*np.indices((height, width)), np.ones((height, width))], axis=-1) @ solved
    if alpha:
        field = rng.uniform(-1, 1, (2, height, width)).astype(np.float32)
        smooth = [scipy.ndimage.gaussian_filter(part, sigma, mode="reflect", truncate=3) for part in field]
        places += alpha * np.stack(smooth, axis=-1)
    grid = np.moveaxis(places, -1, 0)
    channels = [
        scipy.ndimage.map_coordinates(image[..., c], grid, order=1, mode="reflect") for c in range(image.shape[2])
    ]
    return np.stack(channels, axis=-1)


def pixelate(image: np.ndarray, level: int, *, small: bool, **_: Any) -> np.ndarray:
    """Shrinks the image and enlarges its pixels again."""
    share = ((0.95, 0.9, 0.85, 0.75, 0.65) if small else (0.6, 0.5, 0.4, 0.3, 0.25))[level]
    height, width = image.shape[:2]
    size = max(int(height * share), 1), max(int(width * share), 1)
    shrunk = crop_resize.resize(_pillow(image), size, Image.Resampling.BOX)
    return np.asarray(shrunk.resize((width, height), Image.Resampling.NEAREST), np.float32) / 255


def jpeg_compression(image: np.ndarray, level: int, *, small: bool, **_: Any) -> np.ndarray:
    """Writes the image as a JPEG file of low quality."""
    quality = ((80, 65, 58, 50, 40) if small else (25, 18, 15, 10, 7))[level]
    file = io.BytesIO()
    _pillow(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file), np.float32) / 255


def _pillow(image: np.ndarray) -> Image.Image:
    return Image.fromarray((np.clip(image, 0, 1) * 255).round().astype(np.uint8))
