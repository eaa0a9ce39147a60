"""Built-in scenes for pruning: a small flag somewhere in front of the woven wall of `scenes`, beside plain panels.

The class is which colours the flag has, in which order, and whether its stripes are upright ("a|b") or level ("a/b").
The flag covers a few percent of the image, and says all; panels of one of its colours are as salient and say nothing.
So most patches can leave, but few of those that hold the flag, and smaller images blur its stripes.
"""

import math
from collections.abc import Callable

import numpy as np

from jaxprune.data.scenes import MAX_SMUDGES, Field, Scenes
from jaxprune.data.source import Example

UPRIGHT, LEVEL = "|", "/"
CLASS_NAMES = (
    *("blue|white|red", "red/white/blue", "green|white|red", "red/white/green", "black/red/yellow"),
    *("black|yellow|red", "blue/yellow", "white/red", "blue/black/white", "green|white|green"),
)
COLOURS = {
    "red": (0.82, 0.10, 0.14),
    "white": (0.95, 0.95, 0.93),
    "blue": (0.10, 0.20, 0.70),
    "green": (0.05, 0.55, 0.25),
    "yellow": (0.95, 0.80, 0.10),
    "black": (0.07, 0.07, 0.08),
}
# As in `scenes`: lengths in units of the image's shorter side, colours in [0, 1], a pair is the range drawn from.
WIDTH = (0.20, 0.28)
ASPECT = 2 / 3  # height over width
TILT = 10.0  # degrees, in either direction
SHADING = 0.05  # added brightness at the lit side, subtracted at the opposite one
BRIGHTNESS = 0.12  # relative, in either direction, of a whole flag or panel
MAX_PANELS = 2
_DRAWN = 64  # numbers drawn for a scene, more than it takes


class FlagScenes(Scenes):
    """Ten classes of scenes with a small flag; the arguments are those of `Scenes`, and so is the example.

    >>> example = FlagScenes(4, 64)[3]
    >>> FlagScenes.class_names[example["label"]], bool(0.01 < example["mask"].mean() < 0.06)
    ('red/white/green', True)
    """

    class_names = CLASS_NAMES
    num_classes = len(CLASS_NAMES)

    def scene(self, index: int) -> Example:
        """Returns scene `index`."""
        index = range(len(self))[index]
        label = index % len(CLASS_NAMES)
        numbers = iter(self._generator(index).random(_DRAWN).tolist())
        between = lambda low, high: low + (high - low) * next(numbers)
        hue, light = between(0.0, 1.0), between(0.0, 2 * math.pi)
        light_x, light_y = math.cos(light), math.sin(light)
        image = self._wall(between, hue, light_x, light_y)
        for _ in range(int(between(0, MAX_SMUDGES + 1))):
            self._smudge(between, image)
        for _ in range(int(between(0, MAX_PANELS + 1))):
            colour = list(COLOURS)[int(between(0, len(COLOURS)))]
            self._flag(between, image, colour, light_x, light_y)
        outline = self._flag(between, image, CLASS_NAMES[label], light_x, light_y)
        pixels = (np.clip(image, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)
        return {"image": pixels, "label": np.int32(label), "mask": outline < 0.0, "index": np.int32(index)}

    def _flag(
        self, between: Callable[[float, float], float], image: Field, name: str, light_x: float, light_y: float
    ) -> Field:
        """Paints a flag, or a panel of one colour, and returns the distance to its outline."""
        width, tilt = between(*WIDTH), math.radians(between(-TILT, TILT))
        height, cos, sin = ASPECT * width, math.cos(tilt), math.sin(tilt)
        radius = 0.5 * math.hypot(width, height)
        # More often near the border, where a flag that lies wholly inside has less room: nearness to the centre of the
        # image, which finds the object of most photographs, is a guess.
        place = lambda extent: radius + (extent - 2 * radius) * math.sin(between(0, 0.5 * math.pi)) ** 2
        centre_y, centre_x = (place(extent) for extent in self._extent)
        x, y = self._x - centre_x, self._y - centre_y
        across, down = cos * x + sin * y, cos * y - sin * x
        along, length = (across, width) if UPRIGHT in name else (down, height)
        first, *stripes = (np.array(COLOURS[word], np.float32) for word in name.replace(LEVEL, UPRIGHT).split(UPRIGHT))
        colour, before = first, first
        for number, stripe in enumerate(stripes, 1):
            edge = (number / (1 + len(stripes)) - 0.5) * length
            # Antialiased over one pixel, as the outline is.
            colour = colour + np.clip(0.5 + (along - edge) * self._side, 0.0, 1.0)[..., None] * (stripe - before)
            before = stripe
        outline = np.maximum(np.abs(across) - 0.5 * width, np.abs(down) - 0.5 * height)
        shade = SHADING * 2 / width * (light_x * x + light_y * y)
        cover = np.clip(0.5 - outline * self._side, 0.0, 1.0)
        image += cover[..., None] * ((1 + between(-BRIGHTNESS, BRIGHTNESS)) * colour + shade[..., None] - image)
        return outline
