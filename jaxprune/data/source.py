"""What every data source offers: numbered examples that can be read in any order, by any thread."""

from typing import Any, Protocol, runtime_checkable

from absl import logging

Example = dict[str, Any]  # "image" uint8 (h, w, 3), "label" int32, "index" int32; scenes add "mask" bool (h, w)


@runtime_checkable
class Source(Protocol):
    """Numbered examples.

    Attributes:
      name: What a reader calls it, `"folder/train"`.
      class_names: One name a label; empty where there are no labels (every label is -1).
      num_classes: `len(class_names)`.
      broken: {path or name of an example: why it could not be read}, filled as examples are met.
    """

    name: str
    class_names: tuple[str, ...]
    num_classes: int
    broken: dict[str, str]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example:
        """Returns example `index`; raises `Unreadable` if it is broken."""
        ...


class Unreadable(Exception):
    """One example cannot be read. The run goes on without it.

    Args:
      what: Path or name of the example.
      reason: Why, in a few words.
    """

    def __init__(self, what: str, reason: str):
        super().__init__(what, reason)
        self.what, self.reason = what, reason

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


def note_broken(broken: dict[str, str], error: Unreadable) -> None:
    """Enters a broken example in `broken` and logs it, the first time it is met."""
    # dict.setdefault is one step even among threads: exactly one of them logs.
    if broken.setdefault(error.what, error.reason) is error.reason:
        logging.warning("Broken image, left out: %s (%d so far)", error, len(broken))
