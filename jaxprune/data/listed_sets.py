"""Data sets whose own files list the pictures, splits and classes: NABirds and NUS-WIDE."""

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxprune.data.folder import read_example
from jaxprune.errors import UserError

_CSV = "nus_wid_data.csv"


class Listed(NamedTuple):
    """A data set that is listed.

    Attributes:
      class_names: names of the classes.
      splits: by split, (path of a picture, numbers of its classes).
      several: whether pictures have several classes; otherwise each has one.
    """

    class_names: tuple[str, ...]
    splits: dict[str, list[tuple[Path, tuple[int, ...]]]]
    several: bool


class ListedPictures:
    """The pictures of a split, read as those of an `ImageFolder`; `label` is a tuple of classes if there are several.

    Args:
      listed: the data set.
      split: one of its splits.
    """

    def __init__(self, listed: Listed, split: str):
        self.name, self._rows, self._several = split, listed.splits[split], listed.several
        self.class_names, self.num_classes = listed.class_names, len(listed.class_names)
        self.broken: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> dict:
        path, classes = self._rows[index]
        return {"image": read_example(str(path), upright=True), "label": classes if self._several else classes[0]}

    def path(self, index: int) -> str:
        """Returns the file of example `index`."""
        return str(self._rows[index][0])


def find(root: Path) -> Listed | None:
    """Reads the lists of a data set in its own files; None if there are none.

    Raises:
      UserError: a list is damaged, or its pictures are missing.
    """
    for read, marks in _KINDS.items():
        if all((root / mark).exists() for mark in marks):
            listed = read(root)
            pictures = [path for rows in listed.splits.values() for path, _ in rows]
            for path in pictures:
                if ".." in path.parts or not path.is_relative_to(root):
                    raise UserError(f"{root.name} lists {str(path)[:80]!r}, which leads out of it: mend the list.")
            if not pictures or not any(path.is_file() for path in pictures[:100]):
                where = pictures[0] if pictures else root
                raise UserError(f"The pictures that {root.name} lists are missing, such as {where}: unpack them there.")
            return listed
    return None


def _nabirds(root: Path) -> Listed:
    """NABirds: the classes that pictures have, in the order of their numbers, 555 of those listed."""
    paths, classes, training = (
        dict(_fields(root / name)) for name in ("images.txt", "image_class_labels.txt", "train_test_split.txt")
    )
    if not paths.keys() == classes.keys() == training.keys():
        raise UserError(f"The lists of {root.name} are of different pictures: unpack the data set again.")
    numbers = sorted({int(number) for number in classes.values()})
    texts = {int(number): text for number, text in _fields(root / "classes.txt")}
    place = {number: index for index, number in enumerate(numbers)}
    splits: dict[str, list] = {"train": [], "test": []}
    for key, path in paths.items():
        split = "train" if training[key] == "1" else "test"
        splits[split].append((root / "images" / path, (place[int(classes[key])],)))
    # Names of different plumages of a species may be equal: their numbers keep them apart.
    names = tuple(f"{number} {texts.get(number, '')}".strip() for number in numbers)
    return Listed(names, splits, several=False)


def _nus_wide_csv(root: Path) -> Listed:
    """NUS-WIDE as "Which Tokens to Use?" reads it: one table of paths, concepts and splits, `train` or `val`."""
    with (root / _CSV).open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"filepath", "label", "split_name"} <= rows[0].keys():
        raise UserError(f"{_CSV} needs the columns filepath, label and split_name: use the published table.")
    concepts = [tuple(filter(None, (text.strip("[]'\" ") for text in row["label"].split(",")))) for row in rows]
    names = tuple(sorted({name for row in concepts for name in row}))
    place = {name: index for index, name in enumerate(names)}
    splits: dict[str, list] = {"train": [], "test": []}
    for row, present in zip(rows, concepts, strict=True):
        split = "train" if row["split_name"] == "train" else "test"
        splits[split].append((root / row["filepath"], tuple(place[name] for name in present)))
    return Listed(names, splits, several=True)


def _nus_wide(root: Path) -> Listed:
    """NUS-WIDE as its authors publish it: pictures in `Flickr`, and for each concept a list of zeros and ones."""
    names = tuple((root / "ConceptsList" / "Concepts81.txt").read_text().split())
    splits = {}
    for split, title in (("train", "Train"), ("test", "Test")):
        lines = (root / "ImageList" / f"{title}Imagelist.txt").read_text().splitlines()
        paths = [root / "Flickr" / line.strip().replace("\\", "/") for line in lines if line.strip()]
        files = [root / "Groundtruth" / "TrainTestLabels" / f"Labels_{name}_{title}.txt" for name in names]
        columns = [_zeros_and_ones(file, len(paths)) for file in files]
        present = np.stack(columns, axis=1)
        rows = [(path, tuple(np.flatnonzero(row).tolist())) for path, row in zip(paths, present, strict=True)]
        # Flickr has deleted pictures since.
        splits[split] = [row for row in rows if row[0].is_file()] or rows
    return Listed(names, splits, several=True)


def _zeros_and_ones(file: Path, count: int) -> list[bool]:
    column = [text == "1" for text in file.read_text().split()]
    if len(column) != count:
        raise UserError(f"{file.name} has {len(column)} entries for {count} pictures: unpack the data set again.")
    return column


def _fields(file: Path) -> Iterator[tuple[str, str]]:
    """The first word of each line, and the rest."""
    for line in file.read_text().splitlines():
        first, _, rest = line.strip().partition(" ")
        if first:
            yield first, rest.strip()


# What reads a data set, and the files by which it is known.
_KINDS: dict[Callable[[Path], Listed], Sequence[str]] = {
    _nabirds: ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt"),
    _nus_wide_csv: (_CSV,),
    _nus_wide: ("ImageList/TrainImagelist.txt", "Groundtruth/TrainTestLabels", "ConceptsList/Concepts81.txt"),
}
