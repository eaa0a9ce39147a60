"""The interface of a data source: numbered examples that any thread may read, in any order."""

from typing import Any, Protocol, runtime_checkable

Example = dict[str, Any]  # "image" uint8 (h, w, 3), "label" int32, "index" int32; scenes add "mask" bool (h, w)


@runtime_checkable
class Source(Protocol):
    """Numbered examples.

    Attributes:
      name: The name used in messages, such as `"scenes/train"`.
      class_names: The classes in label order; empty where every label is -1.
      num_classes: `len(class_names)`.
      broken: {path or name of an example: why it cannot be read}, filled as broken examples are encountered.
    """

    name: str
    class_names: tuple[str, ...]
    num_classes: int
    broken: dict[str, str]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Example:
        """Returns example `index`; raises `broken.Unreadable` if it is broken."""
        ...
