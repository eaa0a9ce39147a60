"""What every annotation format provides: numbered images with the pixels of each class."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from PIL import ExifTags

from jaxprune.data import decode
from jaxprune.errors import PLACE, UserError, shortened
from jaxprune.files import read_bytes

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

    Annotations are those of the pixels as they are stored, as for `ObjectFiles`; photographs are then rotated according
    to their EXIF tags, with their regions.

    Args:
      name: the name used in messages.
      files: paths of the pictures.
      read_regions: (index of a picture, its (height, width) as stored) -> {class: bool (h, w)}.
    """

    def __init__(self, name: str, files: list[str], read_regions: Callable[[int, tuple[int, int]], Regions]):
        self.name, self.files, self._read_regions = name, files, read_regions

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Annotated:
        stored, orientation = _read_picture(self.files[index])
        regions = self._read_regions(index, stored.shape[:2])
        turn = _TURNS.get(orientation, lambda pixels: pixels)
        return Annotated(turn(stored), {name: turn(pixels) for name, pixels in regions.items()})


def add_region(regions: Regions, name: str, pixels: np.ndarray) -> None:
    """Adds `pixels` to the class `name` of `regions`, in place; an empty region is ignored.

    Args:
      regions: {class: bool (h, w)}.
      name: the class.
      pixels: bool (h, w).
    """
    if pixels.any():
        regions[name] = regions[name] | pixels if name in regions else pixels


# What makes a picture upright, by its EXIF orientation.
_TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: np.fliplr,
    3: lambda pixels: np.rot90(pixels, 2),
    4: np.flipud,
    5: lambda pixels: np.swapaxes(pixels, 0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.swapaxes(np.rot90(pixels, 2), 0, 1),
    8: np.rot90,
}


def _read_picture(file: str) -> tuple[np.ndarray, int]:
    """The pixels as they are stored, and the EXIF orientation."""
    try:
        data = read_bytes(file, decode.MAX_BYTES)
        stored = decode.decode(data, upright=False)
        with decode.open_image(data) as picture:
            return stored, picture.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception as error:  # of damaged tags, Pillow raises many kinds of exceptions
        raise UserError(f"Picture {shortened(file, PLACE)} cannot be read: {shortened(error)}.") from error
