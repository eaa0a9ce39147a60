"""The interface of a data source: numbered examples that any thread may read, in any order."""

from typing import Any, Protocol, runtime_checkable

# "image" uint8 (h, w, 3), "label" int32, "index" int32; scenes add "mask" bool (h, w), their object, and sources for
# segmentation "label_map" uint8 (h, w), the class of each pixel. The "image" of a video is a clip, prepared for a
# network already, uint8 (frames, h, w, 3), or several views, uint8 (views, frames, h, w, 3).
Example = dict[str, Any]
MAPS = ("mask", "label_map")  # arrays with the pixels of the image: cropped and resized with it, by nearest neighbour


def turned(source: "Source") -> bool | None:
    """Returns whether a source rotates photographs by their EXIF tags; None if it reads no picture files."""
    return getattr(source, "exif", None)


def frames_of(source: "Source") -> int:
    """Returns the number of frames of a source's clips; 0 for images."""
    return getattr(source, "num_frames", 0)


def example_name(source: "Source", index: int) -> str:
    """Returns the name of an example in messages: its file, or its index in a source without files."""
    return source.path(index) if hasattr(source, "path") else f"{source.name}[{index}]"  # type: ignore


@runtime_checkable
class Source(Protocol):
    """Numbered examples.

    A source that decodes picture files also has `exif`: whether it rotates photographs according to their EXIF tags. A
    source of videos has `num_frames`, the length of its clips.

    Attributes:
      name: the name used in messages, such as `"scenes/train"`.
      class_names: the classes in label order; empty where every label is -1.
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
