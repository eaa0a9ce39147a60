"""Built-in composed scenes: a solid object of one of ten shapes in front of a woven wall, with its exact mask.

Nothing is stored or downloaded: a scene is drawn from (seed, split, number) in relative units and then rasterised, so
it is the same scene at any resolution. It is designed for three uses:

* *masked pre-training*: most of what varies inside a patch is the wall's weave. It repeats eight times along the
  shorter side, so that with eight patches a side (64 pixels, patches of 8) every patch of the wall shows the same
  piece of it, and a network that sees a quarter of the patches soon predicts far more than each patch's mean colour.
  The remaining task is to predict the light on the wall and the object. (A random resized crop destroys the alignment;
  objects already lie anywhere, so train on whole scenes.)
* *classification*: the class is the object's shape alone; colours, position, size and tilt are drawn independently of
  it.
* *patch ranking*: one object matters, and `mask` marks it exactly. Contrast does not find it: the wall's patches vary
  more than the object's inside, and soft smudges without a class are salient too.
"""

import colorsys
import math
import zlib
from collections.abc import Callable, Iterator

import numpy as np

from jaxprune.data.rng import checked_seed
from jaxprune.data.source import Example
from jaxprune.errors import UserError

# Lengths are in units of the image's shorter side, colours and brightness in [0, 1]; a pair is the range drawn from.
OBJECT_SCALE = (0.35, 0.60)  # diameter of the circle around the object
OBJECT_TILT = 25.0  # degrees, in either direction
OBJECT_SATURATION = (0.50, 0.80)
OBJECT_VALUE = (0.60, 0.90)
OBJECT_SHADING = 0.12  # added brightness at the lit rim, subtracted at the opposite one
WALL_SATURATION = (0.15, 0.45)
WALL_VALUE = (0.50, 0.70)
WALL_SHADING = 0.12  # relative brightening at the lit edge of the picture, darkening at the opposite one
WALL_GLOW = 0.25  # largest change of brightness per squared distance from a random spot
WEAVE_REPEATS = 8  # along the shorter side
WEAVE_AMPLITUDE = (0.16, 0.23)
MAX_SMUDGES = 2
SMUDGE_RADIUS = (0.03, 0.06)
SMUDGE_COVER = 0.6  # opacity of a smudge at its centre

Field = np.ndarray  # float32, (h, w) or broadcastable to it
Form = Callable[[Field, Field], Field]


# The shapes: distance to the outline, negative inside. The circle around each shape has radius 1; y points down.


def _box(x: Field, y: Field, half_width: float, half_height: float) -> Field:
    return np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)


def _disc(x: Field, y: Field) -> Field:
    return np.hypot(x, y) - 1.0


def _ring(x: Field, y: Field) -> Field:
    return np.abs(np.hypot(x, y) - 0.76) - 0.24


def _square(x: Field, y: Field) -> Field:
    return _box(x, y, 0.7, 0.7)


def _triangle(x: Field, y: Field) -> Field:
    return np.maximum(math.sqrt(0.75) * np.abs(x) - 0.5 * y, y) - 0.5


def _cross(x: Field, y: Field) -> Field:
    return np.minimum(_box(x, y, 0.94, 0.3), _box(x, y, 0.3, 0.94))


def _star(x: Field, y: Field) -> Field:
    fifth = 0.4 * math.pi
    angle = np.abs((np.arctan2(x, -y) + 0.5 * fifth) % fifth - 0.5 * fifth)
    # Folded to half a point of the star, the outline is a line from the tip (1, 0) to the notch at 36 degrees.
    notch_x, notch_y = 0.46 * math.cos(0.5 * fifth), 0.46 * math.sin(0.5 * fifth)
    run = 1.0 - notch_x
    across = np.hypot(x, y) * (notch_y * np.cos(angle) + run * np.sin(angle))
    return (across - notch_y) / math.hypot(run, notch_y)


def _crescent(x: Field, y: Field) -> Field:
    return np.maximum(np.hypot(x, y) - 1.0, 0.82 - np.hypot(x - 0.5, y))


def _heart(x: Field, y: Field) -> Field:
    # A square standing on a corner, with a half disc on each of its two upper sides.
    half = 0.56
    u, v = math.sqrt(0.5) * (x + y - 0.1), math.sqrt(0.5) * (y - x - 0.1)
    lobes = np.minimum(np.hypot(u, v + half), np.hypot(u + half, v)) - half
    return np.minimum(_box(u, v, half, half), lobes)


def _bars(x: Field, y: Field) -> Field:
    return np.minimum(_box(x, y, 0.17, 0.64), _box(np.abs(x) - 0.59, y, 0.17, 0.64))


def _checker(x: Field, y: Field) -> Field:
    half = 0.235
    return np.minimum(_box(x, y, half, half), _box(np.abs(x) - 2 * half, np.abs(y) - 2 * half, half, half))


FORMS: dict[str, Form] = {
    "disc": _disc,
    "ring": _ring,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
    "star": _star,
    "crescent": _crescent,
    "heart": _heart,
    "bars": _bars,
    "checker": _checker,
}
CLASS_NAMES = tuple(FORMS)


SMALLEST = 16  # pixels of a side


class Scenes:
    """Ten classes of composed scenes, drawn on demand.

    `scenes[i]` is a dict: `image` uint8 (h, w, 3), `label` int32, `mask` bool (h, w), true on the object, `index` i.

    Args:
      num_examples: number of scenes, which does not affect the first ones; classes alternate.
      image_size: side in pixels, or (height, width).
      seed: seed of the scenes.
      split: split of the scenes: "test" is held out from "train".
    """

    class_names = CLASS_NAMES
    num_classes = len(CLASS_NAMES)

    def __init__(
        self,
        num_examples: int = 10_000,
        image_size: int | tuple[int, int] = 64,
        seed: int = 0,
        split: str = "train",
    ):
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        if num_examples < 1 or min(height, width) < SMALLEST:
            raise UserError(
                f"Scenes need at least one example and sides of at least {SMALLEST} pixels; "
                f"num_examples={num_examples} and image_size={image_size} were given."
            )
        self.name = f"scenes/{split}"
        self.broken: dict[str, str] = {}
        self._num_examples = num_examples
        self._stream = np.array([checked_seed(seed) % 2**64, zlib.crc32(split.encode())], np.uint64)
        self._side = min(height, width)
        self._extent = height / self._side, width / self._side
        self._y = ((np.arange(height, dtype=np.float32) + 0.5) / self._side)[:, None]
        self._x = ((np.arange(width, dtype=np.float32) + 0.5) / self._side)[None, :]

    def __len__(self) -> int:
        return self._num_examples

    def __getitem__(self, index: int) -> Example:
        return self.scene(index)

    def scene(self, index: int) -> Example:
        """Returns scene `index`."""
        index = range(self._num_examples)[index]
        label = index % len(CLASS_NAMES)
        image, mask = self._draw(FORMS[CLASS_NAMES[label]], iter(self._generator(index).random(40).tolist()))
        return {"image": image, "label": np.int32(label), "mask": mask, "index": np.int32(index)}

    def _generator(self, index: int) -> np.random.Generator:
        # A counter-based generator: every scene has its own part of the stream, in whatever order they are drawn.
        return np.random.Generator(np.random.Philox(key=self._stream, counter=[0, 0, 0, index]))

    def _draw(self, form: Form, uniforms: Iterator[float]) -> tuple[np.ndarray, np.ndarray]:
        def between(low: float, high: float) -> float:
            return low + (high - low) * next(uniforms)

        hue, light = between(0.0, 1.0), between(0.0, 2 * math.pi)
        light_x, light_y = math.cos(light), math.sin(light)
        image = self._wall(between, hue, light_x, light_y)
        for _ in range(int(between(0, MAX_SMUDGES + 1))):
            self._smudge(between, image)

        radius = 0.5 * between(*OBJECT_SCALE)
        centre_y, centre_x = (between(radius, extent - radius) for extent in self._extent)
        tilt = math.radians(between(-OBJECT_TILT, OBJECT_TILT))
        x, y = (self._x - centre_x) / radius, (self._y - centre_y) / radius
        cos, sin = math.cos(tilt), math.sin(tilt)
        distance = form(cos * x + sin * y, cos * y - sin * x)
        # A hue from the third of the colour circle opposite to the wall's hue.
        colour = _rgb(hue + between(1 / 3, 2 / 3), between(*OBJECT_SATURATION), between(*OBJECT_VALUE))
        shade = OBJECT_SHADING * (light_x * x + light_y * y)
        # The outline is antialiased over one pixel; the mask ends at half coverage.
        cover = np.clip(0.5 - distance * (radius * self._side), 0.0, 1.0)
        image += cover[..., None] * (colour + shade[..., None] - image)
        return (np.clip(image, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8), distance < 0.0

    def _wall(self, between: Callable[[float, float], float], hue: float, light_x: float, light_y: float) -> Field:
        x, y = self._x, self._y
        height, width = self._extent
        colour = _rgb(hue, between(*WALL_SATURATION), between(*WALL_VALUE))
        across = light_x * (2 * x / width - 1) + light_y * (2 * y / height - 1)
        spot_y, spot_x = between(0, height), between(0, width)
        glow = between(-WALL_GLOW, WALL_GLOW) * ((x - spot_x) ** 2 + (y - spot_y) ** 2)
        # Whole repeats along both axes: vertical, horizontal, or either diagonal.
        turns_x, turns_y = ((1, 0), (0, 1), (1, 1), (1, -1))[int(between(0, 4))]
        wave = 2 * math.pi * WEAVE_REPEATS
        weave = np.sin((wave * turns_x) * x + ((wave * turns_y) * y + between(0, 2 * math.pi)))
        # A pixel is the mean over its area, which makes the scene independent of the resolution.
        amplitude = between(*WEAVE_AMPLITUDE)
        for turns in (turns_x, turns_y):
            amplitude *= float(np.sinc(turns * WEAVE_REPEATS / self._side))
        return (1.0 + WALL_SHADING * across + glow)[..., None] * colour + (amplitude * weave)[..., None]

    def _smudge(self, between: Callable[[float, float], float], image: Field) -> None:
        radius = between(*SMUDGE_RADIUS)
        y, x = ((at - between(0, extent)) / radius for at, extent in zip((self._y, self._x), self._extent, strict=True))
        cover = SMUDGE_COVER * np.exp(-0.5 * y**2) * np.exp(-0.5 * x**2)
        image += cover[..., None] * (_rgb(between(0, 1), between(0, 1), between(0, 1)) - image)


def _rgb(hue: float, saturation: float, value: float) -> np.ndarray:
    return np.array(colorsys.hsv_to_rgb(hue % 1.0, saturation, value), np.float32)
