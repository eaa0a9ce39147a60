"""The way of an image and its label map into a batch: in training as published, and in tests at any size."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxprune.data import rng
from jaxprune.data.decode import plain
from jaxprune.data.joint.crop import cropped, varied_box
from jaxprune.data.joint.photometric import distorted
from jaxprune.data.joint.resize import fitted_size, resized
from jaxprune.data.source import Example
from jaxprune.errors import UserError
from jaxprune.ops.label_maps import IGNORED

Shape = tuple[int, int]
Draws = Callable[[int], np.random.Generator]  # a stream of `data.rng` -> its generator for an example


@dataclasses.dataclass(frozen=True)
class TrainMaps:
    """Resizes an image and its map by a random ratio, crops them together, distorts colours, and pads.

    Flips come on the device (`augment.augment_maps`): they commute with what comes after them here. A batch has
    `extent` int32 (b, 2), the rows and columns of each image that are not padding.

    Attributes:
      size: height and width of the result.
      box: longest and shortest side at ratio 1; None: `size` itself, without keeping the aspect ratio.
      ratio: range that multiplies the box.
      most: share of a crop that one class may have, see `crop.varied_box`; 0: any crop.
      distort: whether colours are distorted.

    Raises:
      UserError: an attribute is out of range.
    """

    size: Shape
    box: Shape | None = None
    ratio: tuple[float, float] = (1.0, 1.0)
    most: float = 0.75
    distort: bool = False

    def __post_init__(self):
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise UserError(f"ratio={self.ratio} is not a range: give the smaller number first, above 0.")

    def is_identity(self, shape: Shape) -> bool:
        """Whether images of `shape` are left as they are."""
        return self.box is None and shape == self.size and not self.distort

    def prepare(self, example: Example, draws: Draws, shuffled: bool) -> Example:
        """Returns the arrays of an example that change."""
        generator = draws(rng.CROP)
        image, label_map = plain(example["image"]), example["label_map"]
        if self.box is None:
            shape = self.size
        else:
            low, high = self.ratio
            ratio = generator.random() * (high - low) + low
            shape = fitted_size(label_map.shape, tuple(int(side * ratio) for side in self.box))
        image, label_map = resized(image, shape), resized(label_map, shape)
        if shape != self.size:
            box = varied_box(generator, label_map, self.size, self.most)
            image, label_map = cropped(image, box), cropped(label_map, box)
        if self.distort:
            image = distorted(image, draws(rng.AUGMENT))
        extent = np.array(image.shape[:2], np.int32)
        return {"image": pad(image, self.size, 0), "label_map": pad(label_map, self.size, IGNORED), "extent": extent}


@dataclasses.dataclass(frozen=True)
class TestMaps:
    """Resizes an image and pads it, and its map at its own size, to the size of a canvas.

    A batch has `extent` int32 (b, 2), rows and columns of the resized image, and `shape` int32 (b, 2), those of its
    map. For several scales, `image_1`, `extent_1` and so on are the further ones.

    Attributes:
      sizes: for each scale, the box that the image fits into, keeping its aspect ratio.
      canvases: for each scale, height and width of `image`.
      map_canvas: height and width of `label_map`.
      keep_aspect: False: images fill the canvas.
    """

    __test__ = False  # no test of pytest

    sizes: tuple[Shape, ...]
    canvases: tuple[Shape, ...]
    map_canvas: Shape
    keep_aspect: bool = True

    def is_identity(self, shape: Shape) -> bool:
        """Never: a batch has further columns."""
        return False

    def prepare(self, example: Example, draws: Draws, shuffled: bool) -> Example:
        """Returns the arrays of an example that change."""
        image, label_map = plain(example["image"]), example["label_map"]
        columns: dict[str, Any] = {"shape": np.array(label_map.shape, np.int32)}
        for scale, (size, canvas) in enumerate(zip(self.sizes, self.canvases, strict=True)):
            shape = fitted_size(image.shape[:2], size) if self.keep_aspect else canvas
            picture = resized(image, shape)
            suffix = f"_{scale}" if scale else ""
            columns[f"image{suffix}"] = pad(picture, canvas, 0)
            columns[f"extent{suffix}"] = np.array(shape, np.int32)
        return {**columns, "label_map": pad(label_map, self.map_canvas, IGNORED)}


def pad(picture: np.ndarray, shape: Shape, value: int) -> np.ndarray:
    """Pads an image or map at the right and at the bottom."""
    missing = [(0, new - old) for old, new in zip(picture.shape, shape, strict=False)]
    if not any(count for _, count in missing):
        return picture
    return np.pad(picture, [*missing, *((0, 0) for _ in picture.shape[2:])], constant_values=value)
