"""A held-out split of a folder without splits."""

import hashlib
import logging
from collections import defaultdict
from pathlib import Path

import numpy as np

from jaxprune.data.folder import SPLITS, ImageFolder, split_names
from jaxprune.data.source import Example
from jaxprune.errors import UserError

_log = logging.getLogger(__name__)


class Part:
    """Some of the pictures of a folder, renumbered.

    Args:
      folder: its pictures.
      numbers: their indices, in ascending order.
      name: name in messages and reports.
    """

    def __init__(self, folder: ImageFolder, numbers: list[int], name: str):
        self.name, self.class_names, self.num_classes = name, folder.class_names, folder.num_classes
        self.broken, self.exif, self.num_frames = folder.broken, folder.exif, folder.num_frames
        self._folder, self._numbers = folder, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Example:
        return {**self._folder[self._numbers[index]], "index": np.int32(index)}

    def path(self, index: int) -> str:
        """Returns the file of example `index`."""
        return self._folder.path(self._numbers[index])


def is_split_here(root: str | Path, split: str) -> bool:
    """Whether a folder has no split directories, and `split` is one that it can be divided into."""
    root = Path(root).expanduser()
    return split in SPLITS and root.is_dir() and not split_names(root)


def part_of(folder: ImageFolder, split: str, share: float, seed: int = 0) -> Part:
    """Returns the training pictures of a folder ("train"), or its held-out ones (any other split).

    The same fraction of every class is held out: at least one picture, and never all. The choice depends only on the
    seed and on the names in that class, not on other classes.

    Args:
      folder: all pictures.
      split: "train", or another of `folder.SPLITS`.
      share: fraction of each class that is held out.
      seed: seed of the choice.

    Raises:
      UserError: no class has two pictures.
    """
    held = _held_out(folder, share, seed)
    if not held:
        raise UserError(
            f"{folder.reader.kind.capitalize()} folder {folder.name!r} has no class with two {folder.reader.files}, so "
            f"none can be held out: add {folder.reader.files}, or train/ and test/ directories."
        )
    numbers = [number for number in range(len(folder)) if (number in held) == (split != "train")]
    part = f"{100 * share:g} %" + (" of each class" if folder.class_names else "")
    if split == "train":
        _log.info(
            "%s has no train/ and test/ directories: %d of its %d %s are held out, %s, by seed %d "
            "(held_out, held_out_seed).",
            folder.name, len(held), len(folder), folder.reader.files, part, seed,
        )  # fmt: skip
    description = f"without {part}" if split == "train" else part
    name = f"{folder.name} ({description}, held out by seed {seed})"
    return Part(folder, numbers, name)


def _held_out(folder: ImageFolder, share: float, seed: int) -> set[int]:
    groups = defaultdict(list)
    for number in range(len(folder)):
        inside = Path(folder.path(number)).relative_to(folder.root)
        # The hash of a name does not depend on other files.
        digest = hashlib.blake2b(f"{seed}/{inside.as_posix()}".encode(errors="surrogateescape")).digest()
        groups[inside.parts[0] if folder.class_names else ""].append((digest, number))
    held = set()
    for group in groups.values():
        count = min(max(round(share * len(group)), 1), len(group) - 1)
        held.update(number for _, number in sorted(group)[:count])
    return held
