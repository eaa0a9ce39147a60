"""How images are prepared for a network: one record, read by training, evaluation, prediction and export."""

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from jaxprune.errors import UserError, quoted, unknown

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)
CROPS = ("center", "none")
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """How an image is prepared for a network; plain values, by timm's names.

    >>> Preprocessing((384, 384)).crop_pct
    0.875

    Attributes:
      img_size: (height, width) in pixels.
      crop: "center" resizes and takes the centre crop; "none" resizes the whole image, ignoring its aspect ratio.
      crop_pct: fraction of the shorter side that the centre crop covers.
      interpolation: Pillow's filter for resizing, one of `INTERPOLATIONS`.
      mean, std: of the normalisation, for pixels in [0, 1], one value per channel.
      exif: whether photographs and video frames are rotated according to their metadata.
      num_frames: frames of a clip; 0: the network reads images.
      frame_stride: video frames between consecutive frames of a clip; 0 spreads the clip over the whole video.

    Raises:
      UserError: an attribute is out of range.
    """

    img_size: tuple[int, int]
    crop: str = "center"
    crop_pct: float = 0.875
    interpolation: str = "bicubic"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    exif: bool = True
    num_frames: int = 0
    frame_stride: int = 4

    def __post_init__(self):
        if not _all(int, self.img_size) or len(self.img_size) != 2 or min(self.img_size) < 1:
            raise UserError(
                f"img_size must be (height, width) in pixels, such as (224, 224), not {quoted(self.img_size)}."
            )
        if self.crop not in CROPS:
            raise unknown("crop", self.crop, CROPS)
        if not _all(numbers.Real, (self.crop_pct,)) or not 0.0 < self.crop_pct <= 1.0:
            raise UserError(
                f"crop_pct={quoted(self.crop_pct)} is outside (0, 1]: use 0.875, or 1.0 to cut off no border."
            )
        if self.interpolation not in INTERPOLATIONS:
            raise unknown("interpolation", self.interpolation, INTERPOLATIONS)
        statistics = _all(numbers.Real, self.mean) and _all(numbers.Real, self.std)
        if not statistics or len(self.mean) != len(self.std) or not self.std or min(self.std) <= 0:
            raise UserError(
                f"mean={quoted(self.mean)} and std={quoted(self.std)} must have one finite value per channel, and std "
                "must be above 0."
            )
        if not _all(int, (self.num_frames, self.frame_stride)) or min(self.num_frames, self.frame_stride) < 0:
            raise UserError(
                f"num_frames={quoted(self.num_frames)} and frame_stride={quoted(self.frame_stride)} must be whole "
                "numbers of 0 or more: use 16 and 4."
            )
        if not isinstance(self.exif, bool):
            raise UserError(f"exif={quoted(self.exif)} is neither True nor False.")
        # Compared and hashed: lists would be other values.
        for name in ("img_size", "mean", "std"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def sides(self) -> tuple[int, ...]:
        """(height, width) of an image, or (frames, height, width) of a clip."""
        return (self.num_frames, *self.img_size) if self.num_frames else self.img_size

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(height, width, channels) of an image, or (frames, height, width, channels) of a clip."""
        return (*self.sides, len(self.mean))

    def with_size(self, img_size: int | Sequence[int]) -> "Preprocessing":
        """The same for images of another size."""
        height, width = (img_size, img_size) if isinstance(img_size, numbers.Integral) else img_size
        return dataclasses.replace(self, img_size=(int(height), int(width)))

    def with_channels(self, channels: int) -> "Preprocessing":
        """The same for images of another number of channels, each with the mean of red, green and blue.

        >>> Preprocessing((224, 224), mean=(0.25, 0.5, 0.75), std=(0.5, 0.5, 0.5)).with_channels(1).mean
        (0.5,)
        """
        if channels == len(self.mean):
            return self
        mean, std = (sum(values) / len(values) for values in (self.mean, self.std))
        return dataclasses.replace(self, mean=(mean,) * channels, std=(std,) * channels)

    def as_dict(self) -> dict[str, Any]:
        """The record as plain values, for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> "Preprocessing":
        """Reads what `as_dict` wrote; unknown fields, from later versions, are ignored.

        Raises:
          UserError: it is something else, or an attribute is out of range.
        """
        if not isinstance(values, Mapping) or "img_size" not in values:
            raise UserError(f"A record of preprocessing has at least an img_size, and is not {quoted(values)}.")
        fields = {field.name for field in dataclasses.fields(cls)}
        tuples: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**{name: value for name, value in tuples.items() if name in fields})


def _all(kind: type, values: Any) -> bool:
    """Whether these are finite numbers of a kind, of which a bool is none."""
    are_numbers = isinstance(values, (tuple, list)) and all(
        isinstance(value, kind) and not isinstance(value, bool) for value in values
    )
    return are_numbers and all(math.isfinite(value) for value in values)


Normalisation = tuple[tuple[float, ...], tuple[float, ...]]


def trained_on(network: Any) -> Normalisation | None:
    """The (mean, std) with which a network expects its pixels to be normalised; None if it has none."""
    record = getattr(network, "preprocessing", network)
    if hasattr(record, "mean") and hasattr(record, "std"):
        return tuple(record.mean), tuple(record.std)
    return None
