"""What every annotation format provides: numbered images with the pixels of each class."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from jaxprune.data import decode
from jaxprune.errors import PLACE, UserError, shortened

OBJECT = "object"  # class of regions whose annotation names none

Regions = dict[str, np.ndarray]  # {class: bool (h, w)}


class Annotated(NamedTuple):
    """An image with its annotated regions.

    Boxes, polygons and masks are all represented by the pixels that they cover.

    Attributes:
      image: uint8 (h, w, 3).
      regions: {class: bool (h, w), True on the pixels of all regions of that class}.
    """

    image: np.ndarray
    regions: Regions


class Annotations(Protocol):
    """Numbered annotated images.

    Attributes:
      name: the name used in messages.
    """

    name: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Annotated: ...


class AnnotatedFiles:
    """Annotated images that are read from picture files on access.

    Args:
      name: the name used in messages.
      files: paths of the pictures.
      read_regions: (index of a picture, its (height, width)) -> {class: bool (h, w)}.
    """

    def __init__(self, name: str, files: list[str], read_regions: Callable[[int, tuple[int, int]], Regions]):
        self.name, self.files, self._read_regions = name, files, read_regions

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Annotated:
        image = _read_picture(self.files[index])
        return Annotated(image, self._read_regions(index, image.shape[:2]))


def add_region(regions: Regions, name: str, pixels: np.ndarray) -> None:
    """Adds `pixels` to the class `name` of `regions`, in place; an empty region is ignored.

    Args:
      regions: {class: bool (h, w)}.
      name: the class.
      pixels: bool (h, w).
    """
    if pixels.any():
        regions[name] = regions[name] | pixels if name in regions else pixels


def _read_picture(file: str) -> np.ndarray:
    try:
        return decode.read(file)
    except (OSError, decode.Broken) as error:
        raise UserError(f"Picture {shortened(file, PLACE)} cannot be read: {shortened(error)}.") from error
