"""How a segmentation network is tested: at which sizes it sees an image, and which images share a program."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxprune.data.broken_examples import Unreadable, read_or_next
from jaxprune.data.decode import plain
from jaxprune.data.joint.resize import fitted_size, resized
from jaxprune.data.joint.segmentation import Shape, TestMaps, pad
from jaxprune.data.memory import InMemory
from jaxprune.data.source import Source
from jaxprune.dense.parts.inference import require_cover, window_starts
from jaxprune.errors import UserError, unknown
from jaxprune.nn.images import normalize
from jaxprune.preprocessing import Preprocessing

WHOLE, SLIDE = "whole", "slide"
MODES = (WHOLE, SLIDE)


@dataclasses.dataclass(frozen=True)
class TestTime:
    """How images are tested.

    Attributes:
      size: height and width of the images that the network reads.
      mode: "whole", images resized to `size`; or "slide", windows of `size` over images resized to fit into `box`.
      box: longest and shortest side of resized images.
      stride: of windows; by default two thirds of `size`, rounded down.
      flip: whether mirrored images count too.
      scales: factors of the box, or of `size`; probabilities are averaged.

    Raises:
      UserError: the mode is unknown, whole images have several scales, or windows would leave pixels out.
    """

    __test__ = False  # no test of pytest

    size: Shape
    mode: str = WHOLE
    box: Shape = (2048, 512)
    stride: Shape = ()  # type: ignore[assignment]
    flip: bool = False
    scales: tuple[float, ...] = (1.0,)

    def __post_init__(self):
        if self.mode not in MODES:
            raise unknown("way to test", self.mode, MODES)
        if not self.scales or min(self.scales) <= 0:
            raise UserError(f"scales={self.scales} need at least one number above 0, such as (1.0,).")
        if self.mode == WHOLE and self.scales != (1.0,):
            raise UserError(f"Whole images are tested at one scale, not at {self.scales}: test with mode='slide'.")
        if self.mode == SLIDE and self.stride:
            require_cover(self.size, self.stride)

    @property
    def window(self) -> Shape | tuple[()]:
        """The windows that slide; () for whole images."""
        return self.size if self.mode == SLIDE else ()

    @property
    def step(self) -> Shape | tuple[()]:
        """From a window to the next; () for whole images."""
        default = (self.size[0] * 2 // 3, self.size[1] * 2 // 3)
        return (self.stride or default) if self.mode == SLIDE else ()

    def boxes(self) -> tuple[Shape, ...]:
        """The box of each scale; the shorter side of the images is at least a window's."""
        shortest = min(self.size)
        return tuple(
            (int(max(self.box) * scale + 0.5), max(int(min(self.box) * scale + 0.5), shortest)) for scale in self.scales
        )

    def canvases(self, shape: Shape) -> tuple[Shape, ...]:
        """The canvas of each scale for an image: as many windows as it needs."""
        if self.mode == WHOLE:
            return (self.size,)
        return tuple(self._canvas(fitted_size(shape, box)) for box in self.boxes())

    def _canvas(self, shape: Shape) -> Shape:
        sides = []
        for side, window, step in zip(shape, self.window, self.step, strict=True):
            count = len(window_starts(max(side, window), window, step))
            sides.append((count - 1) * step + window)
        return sides[0], sides[1]

    def at(self, size: Shape) -> "TestTime":
        """The same test by a network that reads other sizes: box and steps are as much smaller, or larger.

        >>> TestTime((64, 64), "slide", (256, 64), stride=(40, 40)).at((48, 48))
        TestTime(size=(48, 48), mode='slide', box=(192, 48), stride=(30, 30), flip=False, scales=(1.0,))
        """
        down, right = (new / old for new, old in zip(size, self.size, strict=True))
        factor = (down * right) ** 0.5
        longest, shortest = (max(round(side * factor), 1) for side in self.box)
        step = (max(round(self.stride[0] * down), 1), max(round(self.stride[1] * right), 1)) if self.stride else ()
        return dataclasses.replace(self, size=size, box=(longest, shortest), stride=step)


def groups(times: Sequence[TestTime], shapes: Sequence[Shape]) -> list[tuple[list[int], TestMaps]]:
    """Returns the images that share canvases, and their way into a batch: the scales of each test after one another.

    Args:
      times: tests of one mode.
      shapes: height and width of each image.
    """
    members: dict[Any, list[int]] = {}
    for index, shape in enumerate(shapes):
        members.setdefault(tuple(canvas for time in times for canvas in time.canvases(shape)), []).append(index)
    keep = times[0].mode == SLIDE
    sizes = tuple(size for time in times for size in (time.boxes() if keep else (time.size,)))
    ways = []
    for canvases, indices in members.items():
        canvas = tuple(max(shapes[index][axis] for index in indices) for axis in (0, 1))
        ways.append((indices, TestMaps(sizes, canvases, canvas, keep)))
    return ways


def shapes_of(source: Source) -> list[Shape]:
    """Returns height and width of each image of a source, from headers where it reads them."""
    if isinstance(source, InMemory):
        return [source.image_size] * len(source)

    def shape(index: int) -> Shape:
        if hasattr(source, "size"):
            try:
                return source.size(index)  # type: ignore
            except Unreadable:
                pass  # reading the example says so
        rows, columns = read_or_next(source, index)["image"].shape[:2]
        return rows, columns

    return [shape(index) for index in range(len(source))]


def read(source: Source, time: TestTime, record: Preprocessing, count: int) -> jax.Array:
    """Returns the first normalised images of a source as a network reads them; of windows, the one in the middle.

    Args:
      count: number of images; those of a smaller source repeat.
    """
    pixels = []
    for index in range(count):
        image = plain(read_or_next(source, index % len(source))["image"])
        if time.mode == WHOLE:
            pixels.append(resized(image, time.size))
            continue
        image = resized(image, fitted_size(image.shape[:2], time.boxes()[0]))
        image = pad(image, tuple(map(max, image.shape[:2], time.size)), 0)
        top, left = ((side - size) // 2 for side, size in zip(image.shape[:2], time.size, strict=True))
        pixels.append(image[top : top + time.size[0], left : left + time.size[1]])
    return normalize(jnp.asarray(np.stack(pixels)), record.mean, record.std)
