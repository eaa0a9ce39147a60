"""RandAugment with timm's "increasing" strengths (Cubuk et al., 2020): on the host, with Pillow, after the crop.

A policy is written as timm writes it: "rand-m9-mstd0.5-inc1" draws 2 operations, each done with probability one half,
at strength 9 of 10 plus normal noise with standard deviation 0.5.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from jaxprune.errors import UserError, quoted

Fill = tuple[int, int, int]
Operation = Callable[[Image.Image, float, np.random.Generator, Fill], Image.Image]


def _sign(rng: np.random.Generator) -> int:
    return -1 if rng.random() < 0.5 else 1


def _affine(image: Image.Image, matrix: tuple[float, ...], rng: np.random.Generator, fill: Fill) -> Image.Image:
    resample = Image.Resampling.BILINEAR if rng.random() < 0.5 else Image.Resampling.BICUBIC
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample, fillcolor=fill)


def _rotate(image: Image.Image, s: float, rng: np.random.Generator, fill: Fill) -> Image.Image:
    resample = Image.Resampling.BILINEAR if rng.random() < 0.5 else Image.Resampling.BICUBIC
    return image.rotate(30 * s * _sign(rng), resample, fillcolor=fill)


def _shear_x(image: Image.Image, s: float, rng: np.random.Generator, fill: Fill) -> Image.Image:
    return _affine(image, (1, 0.3 * s * _sign(rng), 0, 0, 1, 0), rng, fill)


def _shear_y(image: Image.Image, s: float, rng: np.random.Generator, fill: Fill) -> Image.Image:
    return _affine(image, (1, 0, 0, 0.3 * s * _sign(rng), 1, 0), rng, fill)


def _translate_x(image: Image.Image, s: float, rng: np.random.Generator, fill: Fill) -> Image.Image:
    return _affine(image, (1, 0, 0.45 * s * _sign(rng) * image.width, 0, 1, 0), rng, fill)


def _translate_y(image: Image.Image, s: float, rng: np.random.Generator, fill: Fill) -> Image.Image:
    return _affine(image, (1, 0, 0, 0, 1, 0.45 * s * _sign(rng) * image.height), rng, fill)


def _posterize(image: Image.Image, s: float, rng: np.random.Generator, fill: Fill) -> Image.Image:
    """Keeps the highest 4 to 0 bits; none makes the image black, as ImageOps.posterize did before it refused 0 bits."""
    bits = 4 - int(4 * s)
    return image.point([i & -(1 << (8 - bits)) for i in range(256)] * len(image.getbands()))


def _solarize_add(image: Image.Image, s: float, rng: np.random.Generator, fill: Fill) -> Image.Image:
    added = min(128, int(110 * s))
    return image.point([min(255, i + added) if i < 128 else i for i in range(256)] * len(image.getbands()))


def _enhance(kind: Callable) -> Operation:
    # Stronger means farther from 1, in either direction.
    return lambda image, s, rng, fill: kind(image).enhance(max(0.1, 1.0 + 0.9 * s * _sign(rng)))


# Strength s is from 0 to 1.
OPERATIONS: dict[str, Operation] = {
    "auto_contrast": lambda image, s, rng, fill: ImageOps.autocontrast(image),
    "equalize": lambda image, s, rng, fill: ImageOps.equalize(image),
    "invert": lambda image, s, rng, fill: ImageOps.invert(image),
    "rotate": _rotate,
    "posterize": _posterize,
    "solarize": lambda image, s, rng, fill: ImageOps.solarize(image, 256 - min(256, int(256 * s))),
    "solarize_add": _solarize_add,
    "color": _enhance(ImageEnhance.Color),
    "contrast": _enhance(ImageEnhance.Contrast),
    "brightness": _enhance(ImageEnhance.Brightness),
    "sharpness": _enhance(ImageEnhance.Sharpness),
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
}


@dataclasses.dataclass(frozen=True)
class RandAugment:
    """A policy: number of operations, their strength (0 to 10) and its deviation, and the probability of each.

    Operations are drawn with replacement. New corners are filled with the colour `fill`.
    """

    num_layers: int = 2
    magnitude: float = 9.0
    magnitude_std: float = 0.5
    probability: float = 0.5
    fill: Fill = (124, 116, 104)  # ImageNet's mean

    @classmethod
    def parse(cls, policy: str) -> "RandAugment":
        """Parses "rand-m9-mstd0.5-inc1": m magnitude, n layers, mstd its deviation, p the probability.

        What is left out is as in timm: m10, n2, mstd0, p0.5.

        Raises:
          UserError: the text is not a valid policy.
        """
        names = {"m": "magnitude", "n": "num_layers", "mstd": "magnitude_std", "p": "probability"}
        first, *rest = policy.split("-")
        settings: dict[str, Any] = {"magnitude": 10.0, "magnitude_std": 0.0}
        for word in rest:
            match = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", word)
            if match and match[1] in names:
                settings[names[match[1]]] = int(match[2]) if match[1] == "n" else float(match[2])
            elif word != "inc1":
                first = ""
        if first != "rand":
            raise UserError(
                f"{quoted(policy)} is not a RandAugment policy: write 'rand-m9-mstd0.5-inc1' (m magnitude, n "
                "operations, mstd, p probability; strengths always increase, inc1)."
            )
        return cls(**settings)

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns an augmented uint8 image (h, w, 3)."""
        picture = Image.fromarray(image)
        for name in rng.choice(list(OPERATIONS), self.num_layers):
            if rng.random() < self.probability:
                strength = min(max(rng.normal(self.magnitude, self.magnitude_std), 0.0), 10.0) / 10.0
                picture = OPERATIONS[name](picture, strength, rng, self.fill)
        return np.asarray(picture)
