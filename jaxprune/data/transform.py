"""The transform of a decoded image into network input: crop, resize, augment."""

import dataclasses
from collections.abc import Callable

import numpy as np

from jaxprune.data import crop_resize
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing


@dataclasses.dataclass(frozen=True)
class Transform:
    """Crops and resizes an image or mask.

    Attributes:
      preprocessing: size and filter of the result and, unless it is random, the crop.
      random: whether to take a random crop.
      scale: range of a random crop's fraction of the image's area.
      ratio: range of a random crop's width / height.
      clipped: whether a random crop that does not fit is clipped to the image instead of redrawn.
      border: pixels of reflected border from within which a random crop is taken, of an image that is resized as far as
        it covers the size; None: a random crop is resized itself.
      augment: functions for the cropped image, in order: (image, generator) -> image. The caller applies them, to
        images but not to masks.

    Raises:
      UserError: an attribute is out of range.
    """

    preprocessing: Preprocessing
    random: bool = False
    scale: tuple[float, float] = (1.0, 1.0)
    ratio: tuple[float, float] = (1.0, 1.0)
    clipped: bool = False
    border: int | None = None
    augment: tuple[Callable[[np.ndarray, np.random.Generator], np.ndarray], ...] = ()

    def __post_init__(self):
        if not 0.0 < self.scale[0] <= self.scale[1] <= 1.0 or not 0.0 < self.ratio[0] <= self.ratio[1]:
            raise UserError(
                f"A random crop needs 0 < scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1], not "
                f"scale={self.scale} and ratio={self.ratio}."
            )

    def is_identity(self, shape: tuple[int, int]) -> bool:
        """Returns whether images of `shape` are left unchanged."""
        return not self.random and shape == self.preprocessing.img_size and not self.augment

    def __call__(self, image: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Returns the image or mask, cropped and resized.

        Args:
          image: uint8 (h, w, 3), or a mask, bool (h, w). Clips, which have more dimensions, are returned unchanged:
            their source prepares frames as it decodes them.
          rng: source of randomness for a random crop.
        """
        if image.ndim > 3:
            return image
        if not self.random or rng is None:
            return crop_resize.prepare(image, self.preprocessing)
        filter_ = crop_resize.interpolation(self.preprocessing.interpolation)
        if self.border is not None:
            return crop_resize.bordered_crop(rng, image, self.preprocessing.img_size, self.border, filter_)
        draw = crop_resize.clipped_box if self.clipped else crop_resize.random_box
        box = draw(rng, image.shape[0], image.shape[1], self.scale, self.ratio)
        return crop_resize.resized_crop(image, box, self.preprocessing.img_size, filter_)
