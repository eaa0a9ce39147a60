"""The way of an image and its objects into a batch: large-scale jitter in training as in ViTDet, and whole in tests."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from jaxprune.data import rng
from jaxprune.data.decode import plain
from jaxprune.data.joint.segmentation import pad
from jaxprune.data.objects.base import bitmap
from jaxprune.data.source import Example
from jaxprune.errors import UserError, unknown
from jaxprune.ops.instance_masks import outlines

Shape = tuple[int, int]
Draws = Callable[[int], np.random.Generator]  # a stream of `data.rng` -> its generator for an example
Polygons = list[np.ndarray]

MASKS = ("polygons", "bitmaps", "none")
SHORTEST_SIDE = 1e-5  # objects with a shorter one are left out


@dataclasses.dataclass(frozen=True)
class Jitter:
    """A flip, a scale and a crop of one image, as drawn for it.

    Attributes:
      flip: whether the image is mirrored, before everything else.
      scale: the image is resized to fit into the target times this.
      offset: the place of the crop, as a share of what is left over in both directions.
    """

    flip: bool
    scale: float
    offset: float


def jittered_size(shape: Shape, target: Shape, scale: float) -> Shape:
    """The size of an image that fits into `target` times `scale`, keeping its aspect ratio.

    >>> jittered_size((480, 640), (1024, 1024), 0.5)
    (384, 512)
    """
    factor = min(target[0] * scale / shape[0], target[1] * scale / shape[1])
    height, width = (max(round(side * factor), 1) for side in shape)
    return height, width


def jittered_image(image: np.ndarray, target: Shape, jitter: Jitter) -> np.ndarray:
    """Returns an image flipped, resized by Pillow's bilinear filter, which averages when it shrinks, and cropped."""
    size = jittered_size(image.shape[:2], target, jitter.scale)
    image = image[:, ::-1] if jitter.flip else image
    resized = np.asarray(Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BILINEAR))
    top, left = crop_place(size, target, jitter.offset)
    return resized[top : top + target[0], left : left + target[1]]


def crop_place(size: Shape, target: Shape, offset: float) -> tuple[int, int]:
    """The first row and column of a crop."""
    top, left = (round(max(side - most, 0) * offset) for side, most in zip(size, target, strict=True))
    return top, left


def jittered_points(points: np.ndarray, shape: Shape, target: Shape, jitter: Jitter) -> np.ndarray:
    """Moves (x, y) of an image, (n, 2), to where they are after flip, resizing and crop; nothing is cut off."""
    size = jittered_size(shape, target, jitter.scale)
    top, left = crop_place(size, target, jitter.offset)
    x = shape[1] - points[:, 0] if jitter.flip else points[:, 0]
    return np.stack([x * (size[1] / shape[1]) - left, points[:, 1] * (size[0] / shape[0]) - top], axis=1)


def jittered_box(box: Sequence[float], shape: Shape, target: Shape, jitter: Jitter) -> np.ndarray:
    """The box after the jitter, inside the crop."""
    size = jittered_size(shape, target, jitter.scale)
    height, width = (min(side, most) for side, most in zip(size, target, strict=True))
    points = jittered_points(np.asarray(box, float).reshape(2, 2), shape, target, jitter)
    corners = np.concatenate([points.min(0), points.max(0)])
    return np.clip(corners, 0, np.array([width, height, width, height]))


def jittered_polygons(polygons: Sequence[np.ndarray], shape: Shape, target: Shape, jitter: Jitter) -> Polygons:
    """The polygons after the jitter, cut at the border of the crop; one may become several, or none.

    Raises:
      UserError: shapely is not installed.
    """
    geometry = _shapely()
    size = jittered_size(shape, target, jitter.scale)
    top, left = crop_place(size, target, jitter.offset)
    frame = geometry.box(0, 0, min(target[1], size[1] - left), min(target[0], size[0] - top))
    parts: Polygons = []
    for polygon in polygons:
        points = jittered_points(np.asarray(polygon, float).reshape(-1, 2), shape, target, jitter)
        outline = geometry.Polygon(points).buffer(0)
        if not outline.is_valid:
            continue
        cut = outline.intersection(frame)
        for piece in getattr(cut, "geoms", [cut]):
            if isinstance(piece, geometry.Polygon) and piece.is_valid and not piece.is_empty:
                parts.append(np.asarray(piece.exterior.coords)[:-1].reshape(-1))
    return parts


def polygon_box(polygons: Polygons) -> np.ndarray:
    """The tight box of polygons; (inf, inf, 0, 0) without any."""
    if not polygons:
        return np.array([np.inf, np.inf, 0, 0], np.float32)
    points = np.concatenate([part.reshape(-1, 2) for part in polygons]).astype(np.float32)
    return np.concatenate([points.min(0), np.maximum(points.max(0), 0)])


def jittered_bitmap(pixels: np.ndarray, target: Shape, jitter: Jitter) -> np.ndarray:
    """A bitmap after the jitter, by nearest neighbour, padded to the target."""
    size = jittered_size(pixels.shape[:2], target, jitter.scale)
    pixels = pixels[:, ::-1] if jitter.flip else pixels
    resized = np.asarray(
        Image.fromarray(pixels.astype(np.uint8)).resize((size[1], size[0]), Image.Resampling.NEAREST)
    ).astype(bool)
    top, left = crop_place(size, target, jitter.offset)
    return pad(resized[top : top + target[0], left : left + target[1]], target, 0)


@dataclasses.dataclass(frozen=True)
class TrainObjects:
    """Large-scale jitter (Ghiasi et al., 2021) as in ViTDet: flip, resize by a random scale, crop, and pad.

    Crowds are left out, and objects of which nothing is left. A batch has `extent` int32 (b, 2), the rows and columns
    of each image that are not padding; `boxes` float32 (b, m, 4); `classes` int32 (b, m); `objects` bool (b, m), which
    of them exist; and `masks`: edges (b, m, e, 4) with `polygons` (b, m, e) and `numbers` (b, p), see
    `ops.instance_masks.Outlines`, or bitmaps (b, m, h, w).

    Attributes:
      size: height and width of the result.
      scale: range of the scale.
      flip: share of images that are mirrored.
      masks: "polygons", cut exactly, "bitmaps", or "none"; objects need their polygons for the first.
      num_objects, num_edges, num_polygons: places for objects, and for edges and polygons of each.

    Raises:
      UserError: an attribute is out of range.
    """

    size: Shape
    scale: tuple[float, float] = (0.1, 2.0)
    flip: float = 0.5
    masks: str = "polygons"
    num_objects: int = 100
    num_edges: int = 512
    num_polygons: int = 16

    def __post_init__(self):
        if self.masks not in MASKS:
            raise unknown("kind of masks", self.masks, MASKS)
        if not 0 < self.scale[0] <= self.scale[1]:
            raise UserError(f"scale={self.scale} is not a range: give the smaller number first, above 0.")

    def is_identity(self, shape: Shape) -> bool:
        """Never: a batch has further columns."""
        return False

    def prepare(self, example: Example, draws: Draws, shuffled: bool) -> Example:
        """Returns the arrays of an example that change."""
        generator = draws(rng.CROP)
        flip = generator.random() < self.flip
        low, high = self.scale
        return self.jittered(example, Jitter(flip, low + (high - low) * generator.random(), generator.random()))

    def jittered(self, example: Example, jitter: Jitter) -> Example:
        """The same for given random numbers."""
        image, target = plain(example["image"]), self.size
        shape: Any = image.shape[:2]
        picture = jittered_image(image, target, jitter)
        boxes, classes, masks = [], [], []
        for box, label, crowd, mask in zip(*(example[k] for k in ("boxes", "classes", "crowd", "masks")), strict=True):
            if crowd:
                continue
            moved, mask = self._moved(box, mask, shape, jitter)
            if (moved[2:] - moved[:2] > SHORTEST_SIDE).all():
                boxes.append(moved)
                classes.append(label)
                masks.append(mask)
        columns = self._packed(boxes, classes, masks)
        return {**columns, "image": pad(picture, target, 0), "extent": np.array(picture.shape[:2], np.int32)}

    def _moved(self, box: Any, mask: Any, shape: Shape, jitter: Jitter) -> tuple[np.ndarray, Any]:
        """An object's box and mask after the jitter; the box is tight around what is left of a mask."""
        if self.masks == "none":
            return jittered_box(box, shape, self.size, jitter), None
        if self.masks == "bitmaps":
            pixels = jittered_bitmap(_pixels(mask, box, shape), self.size, jitter)
            if not pixels.any():
                return np.zeros(4), pixels
            rows, places = np.flatnonzero(pixels.any(1)), np.flatnonzero(pixels.any(0))
            return np.array([places[0], rows[0], places[-1] + 1, rows[-1] + 1], np.float32), pixels
        if isinstance(mask, dict) or not len(mask):
            raise UserError(
                "An object has no polygons to train masks with: use masks='bitmaps', or masks='none' for boxes only."
            )
        polygons = jittered_polygons(mask, shape, self.size, jitter)
        return polygon_box(polygons), polygons

    def _packed(self, boxes: list, classes: list, masks: list) -> Example:
        count, places = len(boxes), self.num_objects
        if count > places:
            raise UserError(f"An image has {count} objects, and there is room for {places}: use a larger num_objects.")
        padded = lambda array: np.pad(array, [(0, places - count), *((0, 0) for _ in array.shape[1:])])
        columns: Example = {
            "boxes": padded(np.asarray(boxes, np.float32).reshape(-1, 4)),
            "classes": padded(np.asarray(classes, np.int32)),
            "objects": np.arange(places) < count,
            "crowd": np.zeros(places, bool),
            "masks": np.zeros(0, np.float32),
        }
        if self.masks == "polygons":
            packed = outlines(masks, places, self.num_edges, self.num_polygons)
            columns |= {"masks": packed.edges, "polygons": packed.polygons, "numbers": packed.numbers}
        elif self.masks == "bitmaps":
            columns["masks"] = padded(np.asarray(masks, bool).reshape(-1, *self.size))
        return columns


def _pixels(mask: Any, box: Any, shape: Shape) -> np.ndarray:
    """An object's bitmap, from run lengths, polygons, or else its box."""
    if isinstance(mask, dict):
        return bitmap(mask)
    from jaxprune.data.annotations.shapes import box as box_pixels
    from jaxprune.data.annotations.shapes import segmentation

    if len(mask):
        return segmentation([part.tolist() for part in mask], shape)
    x0, y0, x1, y1 = box
    return box_pixels((y0, x0, y1, x1), shape)


@dataclasses.dataclass(frozen=True)
class TestObjects:
    """Resizes an image to fit into a rectangle, keeping its aspect ratio, and pads it at the bottom or the right.

    A batch has `extent` int32 (b, 2), rows and columns of the resized image, and `shape` int32 (b, 2), those of the
    original one; the objects themselves stay in the source, since average precision reads all of them.

    Attributes:
      size: height and width of the result.
    """

    __test__ = False  # no test of pytest

    size: Shape = (1024, 1024)

    def is_identity(self, shape: Shape) -> bool:
        """Never: a batch has further columns."""
        return False

    def prepare(self, example: Example, draws: Draws, shuffled: bool) -> Example:
        """Returns the arrays of an example that change."""
        image = plain(example["image"])
        shape = whole_size(image.shape[:2], self.size)
        resized = np.asarray(Image.fromarray(image).resize((shape[1], shape[0]), Image.Resampling.BILINEAR))
        nothing = {name: np.zeros(0, np.float32) for name in ("boxes", "classes", "crowd", "masks") if name in example}
        return {
            **nothing,
            "image": pad(resized, self.size, 0),
            "extent": np.array(shape, np.int32),
            "shape": np.array(image.shape[:2], np.int32),
        }


def whole_size(shape: Shape, target: Shape) -> Shape:
    """The size of an image that is resized until it just fits into `target`.

    For a square it is rounded as `shortest_edge` rounds it: the image first covers the target, and then shrinks.

    >>> whole_size((480, 640), (1024, 1024)), whole_size((480, 640), (420, 560)), whole_size((640, 480), (420, 560))
    ((768, 1024), (420, 560), (420, 315))
    """
    factor = max(most / side for side, most in zip(shape, target, strict=True))
    height, width = (side * factor for side in shape)
    if height > target[0] or width > target[1]:
        shrink = min(target[0] / height, target[1] / width)
        height, width = height * shrink, width * shrink
    return max(int(height + 0.5), 1), max(int(width + 0.5), 1)


def shortest_edge(shape: Shape, shortest: int, longest: int) -> Shape:
    """The size of an image whose shorter side is `shortest`, or whose longer side is `longest` if that is smaller.

    >>> shortest_edge((480, 640), 1024, 1024)
    (768, 1024)
    """
    factor = shortest / min(shape)
    height, width = (side * factor for side in shape)
    if max(height, width) > longest:
        shrink = longest / max(height, width)
        height, width = height * shrink, width * shrink
    return max(int(height + 0.5), 1), max(int(width + 0.5), 1)


def _shapely() -> Any:
    try:
        import shapely
    except ImportError as error:
        raise UserError(
            "Cutting polygons needs shapely, which is not installed: pip install 'jaxprune[detection]'."
        ) from error
    return shapely
