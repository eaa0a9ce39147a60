"""The built-in scenes with their object's box and bitmap."""

import numpy as np

from jaxprune.data.objects.base import Object, columns
from jaxprune.data.scenes import Scenes
from jaxprune.data.source import Example


class SceneObjects(Scenes):
    """Built-in scenes for detection: one object each.

    The arguments are those of `Scenes`, and so are the pictures; see `objects.base.ObjectFiles` for the example.

    >>> example = SceneObjects(4, 32)[3]
    >>> example["boxes"].shape, example["classes"].tolist()
    ((1, 4), [3])
    """

    def __getitem__(self, index: int) -> Example:
        example = super().__getitem__(index)
        mask = example.pop("mask")
        return {**example, **columns([_object(example, mask)]), "label": np.int32(-1)}

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return len(self._y), self._x.shape[1]

    def objects(self, index: int) -> tuple[Object, ...]:
        """Returns the objects of an image."""
        example = super().__getitem__(index)
        return (_object(example, example["mask"]),)


def _object(example: Example, mask: np.ndarray) -> Object:
    return Object(tight_box(mask), int(example["label"]), runs=runs_of(mask))


def tight_box(mask: np.ndarray) -> tuple[float, float, float, float]:
    """The box around the pixels of a mask: a pixel i reaches from i to i + 1."""
    rows, columns_ = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return float(columns_[0]), float(rows[0]), float(columns_[-1] + 1), float(rows[-1] + 1)


def runs_of(mask: np.ndarray) -> dict[str, list[int]]:
    """COCO's run lengths of a mask, uncompressed: columns first, beginning with zeros."""
    flat = np.concatenate([[False], mask.ravel(order="F"), [False]])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    counts = np.diff(np.concatenate([[0], changes, [mask.size]])).tolist()
    if len(changes) and changes[-1] == mask.size:
        counts = counts[:-1]
    return {"size": list(mask.shape), "counts": counts}
