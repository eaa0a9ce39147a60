"""Image folders: one directory per class, or any pictures without labels. Folders of videos work the same way."""

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from jaxprune.data import decode, video
from jaxprune.data.broken_examples import Unreadable
from jaxprune.data.source import Example
from jaxprune.errors import PLACE, UserError, nearest, shortened
from jaxprune.files import listing

_log = logging.getLogger(__name__)

UNREAD = (".heic", ".heif", ".avif", ".jp2", ".jxl")  # of pictures, which are not read
SPLITS = ("train", "test", "val", "valid", "validation")
_NAMES_SHOWN = 8


class Reader(Protocol):
    """Reads the files of a folder.

    Attributes:
      kind: "image" or "video", and `files`, the plural in messages.
      extensions: extensions of the files.
      num_frames: frames of a clip; 0 for images.
    """

    kind: str
    files: str
    extensions: tuple[str, ...]

    @property
    def num_frames(self) -> int: ...

    def __call__(self, path: str, *, upright: bool) -> np.ndarray:
        """Returns the `image` of an example; raises `Unreadable` if the file is broken or gone."""
        ...


class ImageFolder:
    """The pictures below `root`; a directory's name is the class of all pictures below it.

    `folder[i]` is a dict: `image` uint8 (h, w, 3), `label` int32, `index` i. Files are in sorted order. Links are
    followed, but a directory that is reachable in several ways counts once, and a class directory only for its class.

    Args:
      root: directory of class directories, or with `labels=False` any directory.
      labels: whether directories are classes. False: every picture below `root`, with label -1, for pre-training.
      exif: whether photographs are rotated according to their EXIF tags.
      class_names: the classes in label order; by default the directories in `root` with pictures, sorted. Directories
        without pictures are left out with a warning.
      name: name of the folder in messages; by default its path.
      reader: reads the files; by default `read_example`. `clips.Views` makes it a folder of videos.

    Raises:
      UserError: `root` does not exist, or contains nothing usable.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        *,
        labels: bool = True,
        exif: bool = True,
        class_names: tuple[str, ...] | None = None,
        name: str | None = None,
        reader: Reader | None = None,
    ):
        self.root = Path(root).expanduser()
        self.name, self.exif = name or str(root), exif
        self.reader = reader or _PICTURES
        self.num_frames = self.reader.num_frames
        self.broken: dict[str, str] = {}
        if not self.root.is_dir():
            kind = self.reader.kind.capitalize()
            raise UserError(f"{kind} folder {self.name!r} does not exist or is not a directory.")
        if labels:
            class_list = None if class_names is None else tuple(class_names)
            self.class_names = _classes([self.root], self.name, self.reader) if class_list is None else class_list
            places = [self.root / directory for directory in self.class_names]
            per_class = [list(image_files(place, places, self.reader.extensions)) for place in places]
        else:
            self.class_names = ()
            per_class = [list(image_files(self.root, (), self.reader.extensions))]
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
        image = self.reader(self._files[index], upright=self.exif)
        return {"image": image, "label": self._labels[index], "index": np.int32(index)}

    @property
    def labels(self) -> np.ndarray:
        """The class of every picture, int32 (n,)."""
        return self._labels

    def path(self, index: int) -> str:
        """Returns the file of example `index`."""
        return self._files[index]

    def _nothing_usable(self, labels: bool) -> str:
        files, extensions = self.reader.files, self.reader.extensions
        kinds = " ".join(extension[1:] for extension in extensions)
        folder = f"{self.reader.kind.capitalize()} folder {self.name!r}"
        if labels and any(_is_one(entry.name, extensions) for entry in listing(self.root)):
            return (
                f"{folder} holds {files} but no class directories with {files}. Put every class into its own "
                "directory; or, for pre-training, which needs no classes, set labels=False (as a config's "
                "argument, labels=false)."
            )
        extensions = decode.EXTENSIONS if self.num_frames else video.EXTENSIONS
        if next(image_files(self.root, (), extensions), None) is not None:
            read, media = ("clips", "pictures") if self.num_frames else ("images", "videos")
            return (
                f"{folder} holds {media} and no {files}, but the network reads {read}: give a folder of {files}, or "
                f"another network."
            )
        contents = f"class directories with {files}" if labels else files
        return f"{folder} holds nothing usable: looked for {contents} ({kinds}), and found none."


class _Pictures:
    """Reads pictures."""

    kind, files, extensions, num_frames = "image", "pictures", decode.EXTENSIONS, 0

    def __call__(self, path: str, *, upright: bool) -> np.ndarray:
        return read_example(path, upright=upright)


_PICTURES = _Pictures()


def read_example(path: str, *, upright: bool) -> np.ndarray:
    """Reads the picture of an example, uint8 (h, w, 3).

    Args:
      upright: whether a photograph is rotated according to its EXIF tag.

    Raises:
      Unreadable: the file is broken or gone.
    """
    try:
        return decode.read(path, upright=upright)
    except (OSError, decode.Broken) as error:
        raise Unreadable(path, str(error)) from error


def open_split(
    root: str | os.PathLike,
    split: str | None = None,
    *,
    labels: bool = True,
    exif: bool = True,
    shown_as: str | os.PathLike | None = None,
    reader: Reader | None = None,
) -> ImageFolder:
    """Opens `root/<split>` if `root` holds splits (`train`, `test`, …), else `root` itself as its only split.

    Labels number the classes of all splits, so a class that is missing in one split does not shift the others. A class
    without pictures in any split is left out with a warning.

    Args:
      root: directory of splits, or of classes.
      split: one of its splits. None: `root` itself.
      labels, exif, reader: as for `ImageFolder`.
      shown_as: name of `root` in messages; by default its path.

    Raises:
      UserError: the split does not exist, or contains nothing usable.
    """
    top = Path(root).expanduser()
    label = str(shown_as or root)
    splits = split_names(top)
    if split is None or not top.is_dir() or (split == "train" and not splits):
        return ImageFolder(root, labels=labels, exif=exif, name=label, reader=reader)
    if split not in splits:
        contents = f"the splits {', '.join(splits)}" if splits else "no split directories (such as train/ and test/)"
        kind = (reader or _PICTURES).kind.capitalize()
        raise UserError(f"{kind} folder {label!r} has no split {split!r}: it holds {contents}.{nearest(split, splits)}")
    class_names = _classes([top / s for s in splits], label, reader or _PICTURES) if labels else None
    options = {"class_names": class_names, "name": f"{label}/{split}", "reader": reader}
    return ImageFolder(top / split, labels=labels, exif=exif, **options)


def split_names(root: Path) -> tuple[str, ...]:
    """Returns the directories in `root` with names of splits."""
    return tuple(d for d in _directories(root) if d in SPLITS) if root.is_dir() else ()


def image_files(
    directory: Path, closed: Iterable[Path] = (), extensions: tuple[str, ...] = decode.EXTENSIONS
) -> Iterator[str]:
    """Yields the pictures anywhere below `directory`, by extension, in sorted order.

    Links are followed, but every real directory is entered only once, and parents of `directory` never.

    Args:
      directory: where to look.
      closed: directories that are not entered.
      extensions: extensions of the files, if not pictures.
    """
    unread: Counter[str] = Counter()
    above = (path for place in (directory.absolute(), directory.resolve()) for path in (place, *place.parents))
    entered = {_identity(path) for path in (*above, *closed)}
    for parent, directories, files in os.walk(directory, onerror=_refuse, followlinks=True):
        inside = [(name, _identity(os.path.join(parent, name))) for name in sorted(directories) if _visible(name)]
        directories[:] = []
        for name, identity in inside:
            if identity not in entered:
                entered.add(identity)
                directories.append(name)
        unread.update(Path(file).suffix.lower() for file in files if _is_one(file, UNREAD))
        yield from (os.path.join(parent, f) for f in sorted(files) if _visible(f) and _is_one(f, extensions))
    if unread and extensions == decode.EXTENSIONS:
        kinds = ", ".join(f"{count} {suffix}" for suffix, count in sorted(unread.items()))
        _log.warning("%s: pictures in formats that are not read are left out (%s): save as JPEG.", directory, kinds)


def _refuse(error: OSError) -> None:
    if isinstance(error, FileNotFoundError):
        return  # a class that a split does not have
    raise UserError(
        f"The directory {shortened(error.filename, PLACE)} cannot be read: {error.strerror}. Allow reading it, or move "
        "it away."
    ) from error


def _identity(path: str | os.PathLike) -> tuple[int, int] | str:
    """An identifier shared by all paths of one directory."""
    try:
        status = os.stat(path)
    except OSError:  # a dangling link
        return str(path)
    return status.st_dev, status.st_ino


def _classes(roots: list[Path], name: str, reader: Reader) -> tuple[str, ...]:
    """Returns the directories with readable files in any of `roots`, sorted; warns of those without."""
    names = sorted({directory for root in roots for directory in _directories(root)})
    present = tuple(name for name in names if any(_has_files(root / name, reader.extensions) for root in roots))
    if present and len(present) < len(names):
        empty = [name for name in names if name not in present]
        remainder = f" and {len(empty) - _NAMES_SHOWN} more" if len(empty) > _NAMES_SHOWN else ""
        names_listed = ", ".join(empty[:_NAMES_SHOWN]) + remainder
        _log.warning("%s: directories without %s are not classes: %s", name, reader.files, names_listed)
    return present


def _has_files(directory: Path, extensions: tuple[str, ...]) -> bool:
    if not directory.is_dir():
        return False
    try:
        with os.scandir(directory) as entries:  # stops at the first entry, while a walk would list all
            if any(_visible(entry.name) and _is_one(entry.name, extensions) and entry.is_file() for entry in entries):
                return True
    except OSError as error:
        _refuse(error)
    return next(image_files(directory, (), extensions), None) is not None


def _directories(root: Path) -> list[str]:
    return sorted(entry.name for entry in listing(root) if entry.is_dir() and _visible(entry.name))


def _visible(name: str) -> bool:
    return not name.startswith(".") and name != "__MACOSX"


def _is_one(name: str, extensions: tuple[str, ...]) -> bool:
    return os.path.splitext(name)[1].lower() in extensions
