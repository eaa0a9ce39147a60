"""What every format of objects provides: checked objects of numbered image files, and the same as COCO's content."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxprune.data.folder import read_example
from jaxprune.data.source import Example, example_name
from jaxprune.errors import PLACE, UserError, shortened

_LARGEST_SIDE = 2**16
_LARGEST_COORDINATE = 2.0**20


class Object(NamedTuple):
    """An annotated object of an image.

    Attributes:
      box: x0, y0, x1, y1 in pixels of the image.
      label: its class, from 0.
      polygons: lists of x, y, x, y, …; () without any.
      runs: COCO's run lengths, {"size": (h, w), "counts": …}; None without any.
      crowd: whether it is a region of several objects, which training leaves out.
    """

    box: tuple[float, float, float, float]
    label: int
    polygons: tuple[np.ndarray, ...] = ()
    runs: Any = None
    crowd: bool = False


class ObjectFiles:
    """A source of images with objects.

    `source[i]` is a dict: `image` uint8 (h, w, 3), `boxes` float32 (n, 4), `classes` int32 (n,), `crowd` bool (n,),
    `masks`, for each object a tuple of polygons or run lengths, `label` -1, `index` i.

    Args:
      name: the name used in messages.
      class_names: in the order of the labels.
      files: of the images.
      read_objects: index of an image -> its objects; raises `UserError` for what is none.
    """

    num_frames, exif = 0, False  # boxes are not rotated, and photographs with them not either

    def __init__(
        self,
        name: str,
        class_names: Sequence[str],
        files: Sequence[str],
        read_objects: Callable[[int], Sequence[Object]],
    ):
        self.name, self.class_names, self.num_classes = name, tuple(class_names), len(class_names)
        self.broken: dict[str, str] = {}
        self._files, self._read_objects = list(files), read_objects

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Example:
        index = range(len(self))[index]
        image = read_example(self._files[index], upright=False)
        return {"image": image, **columns(self.objects(index)), "label": np.int32(-1), "index": np.int32(index)}

    def objects(self, index: int) -> tuple[Object, ...]:
        """Returns the objects of an image without decoding it."""
        return tuple(self._read_objects(index))

    def path(self, index: int) -> str:
        """Returns the file of an image."""
        return self._files[index]


def columns(objects: Sequence[Object]) -> Example:
    """The arrays of an example."""
    return {
        "boxes": np.asarray([annotated.box for annotated in objects], np.float32).reshape(-1, 4),
        "classes": np.asarray([annotated.label for annotated in objects], np.int32),
        "crowd": np.asarray([annotated.crowd for annotated in objects], bool),
        "masks": [annotated.polygons if annotated.runs is None else annotated.runs for annotated in objects],
    }


def coco_content(source: Any, sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Objects as the content of COCO's `instances_*.json`; images, classes and objects are counted from 1.

    Args:
      source: an `ObjectFiles`, or another source with `objects`.
      sizes: (height, width) of each image.
    """
    images, annotations = [], []
    for index, (height, width) in enumerate(sizes):
        images.append(
            {"id": index + 1, "height": int(height), "width": int(width), "file_name": example_name(source, index)}
        )
        for annotated in source.objects(index):
            x0, y0, x1, y1 = annotated.box
            segmentation: Any = (
                [part.tolist() for part in annotated.polygons] if annotated.runs is None else annotated.runs
            )
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": index + 1,
                    "category_id": annotated.label + 1,
                    "bbox": [x0, y0, x1 - x0, y1 - y0],
                    "area": area(annotated),
                    "iscrowd": int(annotated.crowd),
                    "segmentation": segmentation,
                }
            )
    categories = [{"id": label + 1, "name": name} for label, name in enumerate(source.class_names)]
    return {"images": images, "annotations": annotations, "categories": categories}


def area(annotated: Object) -> float:
    """The area of an object in square pixels: of its polygons, its run lengths, or its box."""
    if annotated.runs is not None:
        return float(sum(run_counts(annotated.runs)[1::2]))
    if annotated.polygons:
        return float(sum(abs(_signed_area(part)) for part in annotated.polygons))
    x0, y0, x1, y1 = annotated.box
    return (x1 - x0) * (y1 - y0)


def _signed_area(polygon: np.ndarray) -> float:
    x, y = polygon[0::2], polygon[1::2]
    return float(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1))) / 2


def checked_box(corners: Sequence[Any]) -> tuple[float, float, float, float]:
    """Returns x0, y0, x1, y1 as numbers.

    Raises:
      ValueError: they are not four finite numbers, or the box ends before it begins.
    """
    if isinstance(corners, str) or len(corners) != 4 or any(isinstance(corner, bool) for corner in corners):
        raise ValueError("its box does not consist of four numbers")
    x0, y0, x1, y1 = (float(corner) for corner in corners)
    if not all(math.isfinite(side) and abs(side) <= _LARGEST_COORDINATE for side in (x0, y0, x1, y1)):
        raise ValueError(f"the numbers of its box, {x0:g}, {y0:g}, {x1:g}, {y1:g}, are not all finite and plausible")
    if x1 < x0 or y1 < y0:
        raise ValueError(f"its box, {x0:g}, {y0:g} to {x1:g}, {y1:g}, ends before it begins")
    return x0, y0, x1, y1


def checked_polygon(points: Any) -> np.ndarray:
    """Returns a polygon as float64 (2 n,).

    Raises:
      ValueError: it has less than three corners, an odd number of coordinates, or one that is not finite.
    """
    if not isinstance(points, (list, tuple, np.ndarray)):
        raise ValueError(f"a polygon is {type(points).__name__} and no list")
    array = np.asarray(points)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise ValueError("a polygon is not a flat list of numbers")
    if len(array) < 6 or len(array) % 2:
        raise ValueError(f"a polygon has {len(array)} coordinates: it takes an even number from 6 on")
    array = array.astype(np.float64)
    if not np.isfinite(array).all() or np.abs(array).max() > _LARGEST_COORDINATE:
        raise ValueError("a polygon has coordinates that are not finite and plausible")
    return array


def run_counts(runs: Any) -> list[int]:
    """Returns run lengths as numbers, those of compressed ones decoded.

    Raises:
      ValueError: they are none.
    """
    counts = runs["counts"]
    return list(counts) if isinstance(counts, list) else _decompressed(counts)


def _decompressed(text: Any) -> list[int]:
    """COCO's compressed run lengths: groups of five bits; from the fourth run on, differences to the last but one."""
    if isinstance(text, str):
        text = text.encode("ascii", "strict")
    if not isinstance(text, bytes):
        raise ValueError(f"its run lengths are {type(text).__name__}: use a list or a text")
    counts: list[int] = []
    value = shift = 0
    for byte in text:
        group = byte - 48
        if not 0 <= group < 64 or shift > 30:
            raise ValueError("its run lengths are not COCO's")
        value |= (group & 31) << shift
        shift += 5
        if group & 32:
            continue
        if group & 16:
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("its run lengths end too early")
    return counts


def checked_runs(runs: Any, shape: tuple[int, int] | None) -> dict[str, Any]:
    """Returns run lengths that fill an image.

    Args:
      shape: (height, width) of the image; None if it is not known.

    Raises:
      ValueError: they are not of that size, or not whole numbers from 0 on that add up to it.
    """
    size = runs.get("size")
    if not isinstance(size, (list, tuple)) or len(size) != 2 or not all(isinstance(side, int) for side in size):
        raise ValueError(f"the size of its run lengths, {size}, is not (height, width)")
    height, width = size
    if not (0 < height <= _LARGEST_SIDE and 0 < width <= _LARGEST_SIDE):
        raise ValueError(f"the size of its run lengths, {height}×{width}, is not a size of an image")
    if shape is not None and (height, width) != tuple(shape):
        raise ValueError(f"its run lengths are for {height}×{width} pixels, and the image has {shape[0]}×{shape[1]}")
    counts = run_counts({"counts": runs.get("counts")})
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts):
        raise ValueError("its run lengths are not whole numbers from 0 on")
    if sum(counts) != height * width:
        raise ValueError(f"its run lengths add up to {sum(counts)} and not to {height}×{width} pixels")
    return {"size": [height, width], "counts": runs["counts"]}


def bitmap(runs: Any) -> np.ndarray:
    """Returns the pixels of run lengths, bool (h, w)."""
    counts = run_counts(runs)
    return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(runs["size"], order="F")


def refused(where: str, error: Exception) -> UserError:
    """The error for an annotation that is none."""
    why = shortened(str(error) or type(error).__name__)
    return UserError(f"The annotation {shortened(where, PLACE)} cannot be read: {why}.")
