"""The transformation of a decoded image into network input: crop, resize, augment."""

import dataclasses
from typing import Any

import numpy as np

from jaxprune.data import images
from jaxprune.data.randaugment import RandAugment
from jaxprune.errors import UserError, unknown

CROPS = ("random_resized", "center", "none")


@dataclasses.dataclass(frozen=True)
class Transform:
    """Crops and resizes an image or mask.

    Attributes:
      shape: (height, width) of the result.
      crop: One of `CROPS`.
      resample: Pillow's filter for resizing.
      scale: Range of a random crop's share of the image's area.
      ratio: Range of a random crop's width / height.
      crop_pct: Share of the shorter side that the center crop covers.
      augment: Policy for the cropped image. The caller applies it, to images but not to masks.

    Raises:
      UserError: An attribute is out of range.
    """

    shape: tuple[int, int]
    crop: str
    resample: Any
    scale: tuple[float, float] = (1.0, 1.0)
    ratio: tuple[float, float] = (1.0, 1.0)
    crop_pct: float = 0.875
    augment: RandAugment | None = None

    def __post_init__(self):
        if self.crop not in CROPS:
            raise unknown("crop", self.crop, CROPS)
        if not 0.0 < self.scale[0] <= self.scale[1] <= 1.0 or not 0.0 < self.ratio[0] <= self.ratio[1]:
            raise UserError(
                f"A random crop needs 0 < scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1], not "
                f"scale={self.scale} and ratio={self.ratio}."
            )
        if not 0.0 < self.crop_pct <= 1.0:
            raise UserError(f"crop_pct must lie in (0, 1]; it is {self.crop_pct}.")

    def is_identity(self, shape: tuple[int, int]) -> bool:
        """Returns whether images of `shape` are left unchanged."""
        return self.crop != "random_resized" and shape == self.shape and self.augment is None

    def __call__(self, image: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Returns the image or mask, cropped and resized.

        Args:
          image: uint8 (h, w, 3), or a mask, bool (h, w).
          rng: Source of randomness for a random crop; None takes the whole image instead.
        """
        if self.crop == "center":
            return images.center_crop(image, self.shape, self.crop_pct, self.resample)
        height, width = image.shape[:2]
        box = (0, 0, height, width)
        if rng is not None:
            box = images.random_box(rng, height, width, self.scale, self.ratio)
        return images.resized_crop(image, box, self.shape, self.resample)
