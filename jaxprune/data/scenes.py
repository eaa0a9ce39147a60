"""Built-in composed scenes: one object of ten forms before a softly waving background, with its exact mask.

Nothing is stored or downloaded: a scene is drawn from (seed, split, number) in relative units and then rasterised, so
that it is the same scene at any resolution. Three uses shaped it:

* *masked pre-training*: what varies inside a patch is mostly the background's wide wave and the object's shading, both
  smooth, so that a network which sees a quarter of the patches can foretell more than each patch's mean colour;
* *classification*: the class is the object's form alone; colours, place, size and tilt are drawn independently of it;
* *patch ranking*: one object matters and `mask` says exactly where it is, while the background's wave and a few soft
  smudges see to it that contrast alone does not find it.
"""

import colorsys
import math
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxprune.errors import UserError

# Lengths are in units of the image's shorter side, colours and brightness in [0, 1]; a pair is the range drawn from.
OBJECT_SCALE = (0.35, 0.60)  # diameter of the circle around the object
OBJECT_TILT = 25.0  # degrees, either way
OBJECT_SATURATION = (0.55, 0.85)
OBJECT_VALUE = (0.60, 0.90)
OBJECT_SHADING = 0.12  # brighter at the lit end by so much, darker at the other
GROUND_SATURATION = (0.15, 0.45)
GROUND_VALUE = (0.55, 0.75)
GRADIENT = 0.12  # brightness from the middle of the scene to its lit end
GLOW = 0.12
WEAVE_PERIOD = 1 / 8
WEAVE_CONTRAST = (0.15, 0.21)
MAX_SMUDGES = 2
SMUDGE_RADIUS = (0.025, 0.05)
SMUDGE_STRENGTH = 0.5  # how much of the smudge's colour covers the background at its middle
SOLID = True

Field = np.ndarray  # float32 (h, w)


# The forms: signed distance to the outline (negative inside), in units of the radius of the circle around the form.


def _box(x: Field, y: Field, half_width: float, half_height: float) -> Field:
    return np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)


def _disc(x: Field, y: Field) -> Field:
    return np.hypot(x, y) - 1.0


def _ring(x: Field, y: Field) -> Field:
    return np.abs(np.hypot(x, y) - 0.76) - 0.24


def _square(x: Field, y: Field) -> Field:
    return _box(x, y, 0.7, 0.7)


def _triangle(x: Field, y: Field) -> Field:
    return np.maximum(0.866 * np.abs(x) - 0.5 * y, y) - 0.5


def _cross(x: Field, y: Field) -> Field:
    return np.minimum(_box(x, y, 0.94, 0.3), _box(x, y, 0.3, 0.94))


def _star(x: Field, y: Field) -> Field:
    fold = 0.4 * math.pi
    angle = np.abs((np.arctan2(x, -y) + 0.5 * fold) % fold - 0.5 * fold)
    radius = np.hypot(x, y)
    # The edge runs from the tip (1, 0) to the notch at 0.46 of the radius, a tenth of a turn further.
    notch_x, notch_y = 0.46 * math.cos(0.5 * fold), 0.46 * math.sin(0.5 * fold)
    length = math.hypot(1.0 - notch_x, notch_y)
    return (radius * (np.cos(angle) * notch_y + np.sin(angle) * (1.0 - notch_x)) - notch_y) / length


def _crescent(x: Field, y: Field) -> Field:
    return np.maximum(np.hypot(x, y) - 1.0, 0.82 - np.hypot(x - 0.5, y))


def _heart(x: Field, y: Field) -> Field:
    # A square on its corner with a half disc on each of its upper sides.
    half = 0.56
    u, v = (x + y - 0.1) * math.sqrt(0.5), (y - 0.1 - x) * math.sqrt(0.5)
    lobes = np.minimum(np.hypot(u, v + half), np.hypot(u + half, v)) - half
    return np.minimum(_box(u, v, half, half), lobes)


def _bars(x: Field, y: Field) -> Field:
    return np.minimum(_box(x, y, 0.17, 0.64), _box(np.abs(x) - 0.59, y, 0.17, 0.64))


def _checker(x: Field, y: Field) -> Field:
    return np.minimum(_box(x, y, 0.235, 0.235), _box(np.abs(x) - 0.47, np.abs(y) - 0.47, 0.235, 0.235))


FORMS: dict[str, Callable[[Field, Field], Field]] = {
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


def _between(bounds: tuple[float, float], u: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * u


class Scenes:
    """Ten classes of composed scenes, drawn on demand.

    `scenes[i]` is a dict: `image` uint8 (h, w, 3), `label` int32, `mask` bool (h, w), true on the object, `index` i.

    Args:
      num_examples: How many scenes; the first ones do not depend on it. The classes take turns.
      image_size: Side in pixels, or (height, width).
      seed: Another seed, other scenes.
      split: Another split, other scenes: a held-out set is `split="test"`.
    """

    class_names = CLASS_NAMES
    num_classes = len(CLASS_NAMES)

    def __init__(self, num_examples: int = 10_000, image_size: int | tuple[int, int] = 64, seed: int = 0,
                 split: str = "train"):
        height, width = (image_size, image_size) if isinstance(image_size, int) else map(int, image_size)
        if num_examples < 1 or min(height, width) < 8:
            raise UserError(
                f"Scenes need num_examples of at least 1 and sides of at least 8 pixels, not {num_examples} and "
                f"{height}x{width}."
            )
        self.num_examples = int(num_examples)
        self.image_size = (height, width)
        self.name = f"scenes/{split}"
        self.broken: dict[str, str] = {}
        self._key = np.array([seed, zlib.crc32(split.encode())]).astype(np.uint64)
        self._side = min(height, width)
        self._extent = (height / self._side, width / self._side)
        self._y = ((np.arange(height, dtype=np.float32) + 0.5) / self._side)[:, None]
        self._x = ((np.arange(width, dtype=np.float32) + 0.5) / self._side)[None, :]

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        index = range(self.num_examples)[index]
        label = index % self.num_classes
        image, mask = self._draw(FORMS[CLASS_NAMES[label]], self._random(index))
        return {"image": image, "label": np.int32(label), "mask": mask, "index": np.int32(index)}

    def _random(self, index: int):
        """Uniform numbers in [0, 1) for one scene, in the order they are asked for."""
        generator = np.random.Generator(np.random.Philox(key=self._key, counter=[0, 0, 0, index]))
        return iter(generator.random(64).tolist()).__next__

    def _draw(self, form, u) -> tuple[np.ndarray, np.ndarray]:
        x, y = self._x, self._y
        radius = 0.5 * _between(OBJECT_SCALE, u())
        centre_y, centre_x = (_between((radius, extent - radius), u()) for extent in self._extent)
        tilt = math.radians(OBJECT_TILT) * (2 * u() - 1)
        hue = u()
        colour = colorsys.hsv_to_rgb((hue + 0.5 + (u() - 0.5) / 3) % 1, _between(OBJECT_SATURATION, u()), _between(OBJECT_VALUE, u()))
        ground = colorsys.hsv_to_rgb(hue, _between(GROUND_SATURATION, u()), _between(GROUND_VALUE, u()))
        ground, colour = (np.array(c, np.float32) for c in (ground, colour))
        light = 2 * math.pi * u()
        gx, gy = GRADIENT * math.cos(light), GRADIENT * math.sin(light)
        # weave
        kx, ky = ((1, 0), (0, 1), (1, 1), (1, -1))[int(4 * u())]
        k = 2 * math.pi / WEAVE_PERIOD
        weave = _between(WEAVE_CONTRAST, u()) * np.sin(k * kx * x + (k * ky * y + 2 * math.pi * u()))
        bright = 1 + gx * (2 * x - 1) + gy * (2 * y - 1)
        fx, fy = (e * u() for e in reversed(self._extent))
        bright = bright + GLOW * (2 * u() - 1) * 2*((x - fx) ** 2 + (y - fy) ** 2)
        base = ground * bright[..., None]
        image = base + weave[..., None]
        for _ in range(int(u() * (MAX_SMUDGES + 1))):
            r = _between(SMUDGE_RADIUS, u())
            sy, sx = (u() * e for e in self._extent)
            c = np.array([u(), u(), u()], np.float32)
            cover = SMUDGE_STRENGTH * np.exp(-0.5 * ((x - sx) / r) ** 2) * np.exp(-0.5 * ((y - sy) / r) ** 2)
            image += cover[..., None] * (c - image)
        dx, dy = (x - centre_x) / radius, (y - centre_y) / radius
        c, s = math.cos(tilt), math.sin(tilt)
        distance = form(c * dx + s * dy, c * dy - s * dx)
        cover = np.clip(0.5 - distance * (radius * self._side), 0, 1)
        shade = OBJECT_SHADING * (math.cos(light) * dx + math.sin(light) * dy)
        obj = colour + shade[..., None] + (0 if SOLID else weave[..., None])
        image += cover[..., None] * (obj - image)
        return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8), distance < 0
