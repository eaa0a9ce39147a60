"""Your own pictures without labels, as a source: a folder, one file, or a text file that lists files."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxprune.data.folder import ImageFolder, read_example
from jaxprune.data.source import Example, Source
from jaxprune.errors import PLACE, UserError, shortened
from jaxprune.files import read_text

LIST = ".txt"


class FileList:
    """Picture files in a given order, without labels.

    `files[i]` is a dict: `image` uint8 (h, w, 3), `label` -1, `index` i.

    Args:
      files: their paths.
      name: name of the list in messages.
      exif: whether photographs are rotated according to their EXIF tags.

    Raises:
      UserError: there are no files.
    """

    def __init__(self, files: Sequence[str], *, name: str, exif: bool = True):
        if not files:
            raise UserError(f"{name} lists no pictures: write one path per line.")
        self.name, self.exif = name, exif
        self.class_names: tuple[str, ...] = ()
        self.num_classes = 0
        self.broken: dict[str, str] = {}
        self._files = tuple(files)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Example:
        index = range(len(self))[index]
        image = read_example(self._files[index], upright=self.exif)
        return {"image": image, "label": np.int32(-1), "index": np.int32(index)}

    def path(self, index: int) -> str:
        """Returns the file of example `index`."""
        return self._files[index]


def open_images(path: str, *, exif: bool = True) -> Source:
    """Opens your own pictures.

    Args:
      path: A folder, which is searched recursively; a picture; or a `.txt` file with one path per line, relative to
        that file's directory.
      exif: whether photographs are rotated according to their EXIF tags.

    Raises:
      UserError: there are none.
    """
    place = Path(path).expanduser()
    if os.path.isdir(place):
        return ImageFolder(path, labels=False, exif=exif)
    if not os.path.exists(place):
        raise UserError(
            f"There are no pictures at {shortened(path, PLACE)}: give a folder, a picture, or a {LIST} file that lists "
            "pictures."
        )
    return FileList(_listed(place) if place.suffix.lower() == LIST else [str(place)], name=path, exif=exif)


def _listed(place: Path) -> list[str]:
    try:
        lines = read_text(place, limit=None).splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"The list of pictures {place} cannot be read: {shortened(error)}.") from error
    return [os.path.join(place.parent, os.path.expanduser(line.strip())) for line in lines if line.strip()]
