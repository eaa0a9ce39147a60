"""Image folders: one directory a class, or a flat heap of pictures without labels."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxprune.data import images
from jaxprune.data.broken import Unreadable
from jaxprune.data.source import Example
from jaxprune.errors import UserError, nearest

SPLITS = ("train", "test", "val", "valid", "validation")


class ImageFolder:
    """The pictures below `root`; a directory's name is the class of all pictures below it.

    `folder[i]` is a dict: `image` uint8 (h, w, 3), `label` int32, `index` i. Files are taken in sorted order.

    Args:
      root: Directory of class directories, or with `labels=False` any directory.
      labels: Whether directories are classes. False: every picture below `root`, with label -1, for pre-training.
      exif: Whether photographs are turned upright as their EXIF tags say.
      class_names: The classes in label order; by default the directories in `root`, sorted.
      name: What it is called in messages; by default the path.

    Raises:
      UserError: `root` does not exist, or nothing usable is below it.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        *,
        labels: bool = True,
        exif: bool = True,
        class_names: tuple[str, ...] | None = None,
        name: str | None = None,
    ):
        self.root = Path(root).expanduser()
        self.name, self.exif = name or str(root), exif
        self.broken: dict[str, str] = {}
        if not self.root.is_dir():
            raise UserError(f"Image folder {self.name!r} does not exist or is not a directory.")
        if labels:
            self.class_names = tuple(class_names or _directories(self.root))
            per_class = [list(image_files(self.root / directory)) for directory in self.class_names]
        else:
            self.class_names = ()
            per_class = [list(image_files(self.root))]
        self.num_classes = len(self.class_names)
        self._files = [file for files in per_class for file in files]
        numbers = range(self.num_classes) if labels else [-1]
        self._labels = np.repeat(np.array(numbers, np.int32), [len(files) for files in per_class])
        if not self._files:
            raise UserError(self._nothing_usable(labels))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Example:
        index = range(len(self))[index]
        path = self._files[index]
        try:
            with open(path, "rb") as file:
                image = images.decode(file.read(), upright=self.exif)
        except (OSError, images.Broken) as error:
            raise Unreadable(path, str(error)) from error
        return {"image": image, "label": self._labels[index], "index": np.int32(index)}

    def path(self, index: int) -> str:
        """Returns the file of example `index`."""
        return self._files[index]

    def _nothing_usable(self, labels: bool) -> str:
        kinds = " ".join(extension[1:] for extension in images.EXTENSIONS)
        if labels and any(_is_image(entry.name) for entry in self.root.iterdir()):
            return (
                f"Image folder {self.name!r} holds pictures but no class directories with pictures. Put every class "
                "into a directory of its own, or pass labels=False to pre-train without labels."
            )
        wanted = "directories, one a class, with pictures" if labels else "pictures"
        return f"Image folder {self.name!r} holds nothing usable: looked for {wanted} ({kinds}), and found none."


def open_split(
    root: str | os.PathLike,
    split: str | None = None,
    *,
    labels: bool = True,
    exif: bool = True,
    shown_as: str | os.PathLike | None = None,
) -> ImageFolder:
    """Opens `root/<split>` if `root` holds splits (`train`, `test`, …), else `root` itself as its only split.

    Labels count over the classes of all splits, so that a class that one split lacks does not shift the others.

    Args:
      root: Directory of splits, or of classes.
      split: One of its splits. None: `root` itself, whatever it holds.
      labels, exif: As for `ImageFolder`.
      shown_as: What messages call `root`; by default its path.

    Raises:
      UserError: A split is asked for that is not there, or nothing usable is in it.
    """
    top = Path(root).expanduser()
    shown = str(shown_as or root)
    splits = split_names(top)
    if split is None or not top.is_dir() or (split == "train" and not splits):
        return ImageFolder(root, labels=labels, exif=exif, name=shown)
    if split not in splits:
        there = f"the splits {', '.join(splits)}" if splits else "no split directories (such as train/ and test/)"
        raise UserError(f"Image folder {shown!r} has no split {split!r}: it holds {there}.{nearest(split, splits)}")
    class_names = tuple(sorted({name for s in splits for name in _directories(top / s)}))
    known = class_names if labels else None
    return ImageFolder(top / split, labels=labels, exif=exif, class_names=known, name=f"{shown}/{split}")


def split_names(root: Path) -> tuple[str, ...]:
    """Returns the directories in `root` that are splits by their names."""
    return tuple(d for d in _directories(root) if d in SPLITS) if root.is_dir() else ()


def image_files(directory: Path) -> Iterator[str]:
    """Yields the pictures anywhere below `directory`, known by their extension, in sorted order."""
    for parent, directories, files in os.walk(directory, followlinks=True):
        directories[:] = sorted(d for d in directories if _visible(d))
        yield from (os.path.join(parent, f) for f in sorted(files) if _visible(f) and _is_image(f))


def _directories(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and _visible(entry.name))


def _visible(name: str) -> bool:
    return not name.startswith(".") and name != "__MACOSX"


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in images.EXTENSIONS
