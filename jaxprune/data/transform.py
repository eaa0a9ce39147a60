"""The transform of a decoded image into network input: crop, resize, augment."""

import dataclasses
from collections.abc import Callable

import numpy as np

from jaxprune.data import crop_resize, rng
from jaxprune.data.source import MAPS, Example
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing


@dataclasses.dataclass(frozen=True)
class Transform:
    """Crops and resizes an image or map.

    Attributes:
      preprocessing: size and filter of the result and, unless it is random, the crop.
      random: whether to take a random crop.
      scale: range of a random crop's fraction of the image's area.
      ratio: range of a random crop's width / height.
      clipped: whether a random crop that does not fit is clipped to the image instead of redrawn.
      border: pixels of reflected border from within which a random crop is taken, of an image that is resized as far as
        it covers the size; None: a random crop is resized itself.
      augment: functions for the cropped image, in order: (image, generator) -> image; `prepare` applies them, to
        images but not to maps.

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

    def prepare(self, example: Example, draws: Callable[[int], np.random.Generator], shuffled: bool) -> Example:
        """Returns the arrays of an example that change: its image, and its maps with the same crop.

        Args:
          draws: returns the generator of the example for a stream of `data.rng`, from its beginning.
          shuffled: whether it is an example of training; only there crops are random.
        """
        # Draws depend on the shape alone: a fresh generator gives the image and its maps one crop.
        crop = lambda: draws(rng.CROP) if shuffled and self.random else None
        pictures = {name: self(example[name], crop()) for name in ("image", *MAPS) if name in example}
        if self.augment:
            generator = draws(rng.AUGMENT)
            for change in self.augment:
                pictures["image"] = change(pictures["image"], generator)
        return pictures

    def __call__(self, image: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Returns the image or map, cropped and resized.

        Args:
          image: uint8 (h, w, 3), or a map, (h, w). Clips, which have more dimensions, are returned unchanged:
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


@dataclasses.dataclass(frozen=True)
class WithSmallerImages:
    """Also prepares an example for networks on smaller images, from the same original: `image_154x154` beside `image`.

    Attributes:
      full: the transform of `image`.
      sizes: (height, width) of the smaller images.
    """

    full: Transform
    sizes: tuple[tuple[int, int], ...]

    def is_identity(self, shape: tuple[int, int]) -> bool:
        """Never: a batch has further columns."""
        return False

    def prepare(self, example: Example, draws: Callable[[int], np.random.Generator], shuffled: bool) -> Example:
        """See `Transform.prepare`."""
        arrays, record = self.full.prepare(example, draws, shuffled), self.full.preprocessing
        if example["image"].shape[:2] == record.img_size:
            record = dataclasses.replace(record, crop="none")  # it is not cropped, at other sizes neither
        for size in self.sizes:
            smaller = dataclasses.replace(self.full, preprocessing=record.with_size(size))
            arrays[image_column(size)] = smaller.prepare(example, draws, shuffled)["image"]
        return arrays


def image_column(size: tuple[int, ...]) -> str:
    """Returns the column of a batch with the images of a smaller size.

    >>> image_column((154, 154))
    'image_154x154'
    """
    return f"image_{'x'.join(map(str, size))}"
