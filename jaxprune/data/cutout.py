"""Cutout (DeVries and Taylor, 2017): on the host, after the crop and before RandAugment, in one random colour."""

import dataclasses

import numpy as np

from jaxprune.errors import UserError


@dataclasses.dataclass(frozen=True)
class Cutout:
    """Masks a rectangle of `side` times the image's sides, cut at the border, as published for multi-label data.

    The centre is a random pixel. As with Pillow's rectangles, both ends are included, so half of 224 pixels is 113.

    Raises:
      UserError: `side` is outside (0, 1].
    """

    side: float

    def __post_init__(self):
        if not 0.0 < self.side <= 1.0:
            raise UserError(f"cutout={self.side} is not a fraction of an image's side: use one in (0, 1], such as 0.5.")

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns a masked copy of a uint8 image (h, w, 3)."""
        painted = image.copy()
        rows, columns = (self._span(length, rng) for length in image.shape[:2])
        painted[rows, columns] = rng.integers(0, 256, image.shape[2])
        return painted

    def _span(self, length: int, rng: np.random.Generator) -> slice:
        half, centre = int(self.side * length + 0.5) // 2, int(rng.integers(length))
        return slice(max(centre - half, 0), min(centre + half, length) + 1)
