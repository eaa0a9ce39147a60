"""The fifteen corruptions of ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich, 2019), each at five severities.

Settings are the published ones: CIFAR-10-C's for images below 64 pixels, else ImageNet-C's, whose lengths are for
images of 224 pixels and scale with the image. Random numbers are this library's, so single images differ from the
published files; frost crystals are generated instead of taken from photographs, and "glass_blur" takes a neighbour's
value for each pixel instead of swapping neighbours one after the other.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from jaxprune.data.corruptions import blur, digital, noise, weather
from jaxprune.errors import UserError, unknown

SEVERITIES = (1, 2, 3, 4, 5)
_SMALL = 64  # shorter side in pixels from which ImageNet-C's settings hold

# By kind; within a kind in the order of the publication's tables.
KINDS: dict[str, dict[str, Callable[..., np.ndarray]]] = {
    kind: {name: getattr(module, name) for name in module.NAMES}
    for kind, module in (("noise", noise), ("blur", blur), ("weather", weather), ("digital", digital))
}
NAMES = tuple(name for names in KINDS.values() for name in names)


@dataclasses.dataclass(frozen=True)
class Corruption:
    """One corruption at one severity.

    >>> grey = np.full((32, 32, 3), 128, np.uint8)
    >>> bool(Corruption("brightness", 3)(grey, np.random.default_rng(0)).mean() > 128)
    True

    Args:
      name: one of `NAMES`.
      severity: 1 to 5.

    Raises:
      UserError: there is no such corruption or severity.
    """

    name: str
    severity: int

    def __post_init__(self):
        if self.name not in NAMES:
            raise unknown("corruption", self.name, NAMES)
        if self.severity not in SEVERITIES:
            raise UserError(f"severity={self.severity!r} is out of range: use 1, 2, 3, 4 or 5.")

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns a corrupted copy of a uint8 image (h, w, 3)."""
        side = min(image.shape[:2])
        change = next(names[self.name] for names in KINDS.values() if self.name in names)
        pixels = image.astype(np.float32) / 255
        changed = change(pixels, self.severity - 1, small=side < _SMALL, scale=side / 224, rng=rng)
        return (np.clip(changed, 0, 1) * 255).round().astype(np.uint8)
