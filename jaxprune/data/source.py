"""What every data source offers: numbered examples that any thread may read, in any order."""

import threading
from typing import Any, Protocol, runtime_checkable

import numpy as np
from absl import logging

from jaxprune.errors import UserError

Example = dict[str, Any]  # "image" uint8 (h, w, 3), "label" int32, "index" int32; scenes add "mask" bool (h, w)

_noting = threading.Lock()


@runtime_checkable
class Source(Protocol):
    """Numbered examples.

    Attributes:
      name: What messages call it, such as `"scenes/train"`.
      class_names: The classes in label order; empty where every label is -1.
      num_classes: `len(class_names)`.
      broken: {path or name of an example: why it cannot be read}, filled as such examples are met.
    """

    name: str
    class_names: tuple[str, ...]
    num_classes: int
    broken: dict[str, str]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Example:
        """Returns example `index`; raises `Unreadable` if it is broken."""
        ...


class Unreadable(Exception):
    """One example cannot be read, and the run goes on without it.

    Args:
      what: Path or name of the example.
      reason: Why.
    """

    def __init__(self, what: str, reason: str):
        super().__init__(what, reason)
        self.what, self.reason = what, reason


def note_broken(broken: dict[str, str], error: Unreadable) -> None:
    """Enters a broken example in `broken`, and logs it the first time it is met."""
    with _noting:
        if error.what in broken:
            return
        broken[error.what] = error.reason
    logging.warning("Broken image left out (%d so far): %s: %s", len(broken), error.what, error.reason)


def read(source: Source, index: int) -> Example:
    """Returns example `index`, or the next readable one in its place: then its own `index` says which.

    Raises:
      UserError: Not one example can be read.
    """
    for step in range(len(source)):
        try:
            return source[(index + step) % len(source)]
        except Unreadable as error:
            note_broken(source.broken, error)
    what, reason = next(iter(source.broken.items()))
    raise UserError(f"None of the {len(source)} images of {source.name!r} can be read; the first, {what}: {reason}.")


class Sample:
    """Evenly spaced examples of a source, numbered anew: a fair part of one whose classes come one after the other.

    Args:
      source: The examples to choose from.
      count: How many of them; all, if there are no more.
    """

    def __init__(self, source: Source, count: int):
        self.name, self.class_names, self.num_classes = source.name, source.class_names, source.num_classes
        self.broken = source.broken
        self._source, self._count = source, min(count, len(source))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Example:
        return {**self._source[index * len(self._source) // self._count], "index": np.int32(index)}
