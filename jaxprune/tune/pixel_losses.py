"""The loss of an image under a plan of a segmentation network: a share of its pixels, from 0 to 1.

Agreement needs no labels: the share of pixels whose class is another than by the dense network. Where there are label
maps, pixels without a class do not count.

Lost accuracy needs label maps: by how much the share of wrong pixels is larger than by the dense network; 0 where it is
smaller, so that gains on some images pay for no losses on others. Pixel accuracy, the mean over images, falls by at
most the mean of these losses.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxprune.errors import UserError
from jaxprune.measures.intervals import Interval
from jaxprune.measures.segmentation import Areas, intervals


class PixelCounts(NamedTuple):
    """What a network makes of images, counted by image.

    Attributes:
      counted: pixels that count: all; with label maps, those with a class.
      agreeing: those of them with the dense network's class.
      areas: pixels of each class that are right, labelled, and predicted, (n, k); (n, 0) without label maps.
    """

    counted: Int[np.ndarray, "n"]
    agreeing: Int[np.ndarray, "n"]
    areas: Areas

    def __getitem__(self, part):  # pyright: ignore[reportIncompatibleMethodOverride]
        return PixelCounts(self.counted[part], self.agreeing[part], Areas(*(area[part] for area in self.areas)))

    @property
    def wrong(self) -> Float[np.ndarray, "n"]:
        """The share of wrong pixels of each image; 0 of one without a pixel that counts."""
        return _shares(self.counted - self.areas.right.sum(1), self.counted)


def agreement_losses(plan: PixelCounts) -> Float[np.ndarray, "n"]:
    """Returns the share of the pixels of each image whose class is another than by the dense network.

    >>> nothing = Areas(*np.zeros((3, 2, 0), int))
    >>> agreement_losses(PixelCounts(np.array([10, 0]), np.array([7, 0]), nothing)).tolist()
    [0.3, 0.0]

    Args:
      plan: the counts of the network under a plan; an image without a pixel that counts loses nothing.
    """
    return _shares(plan.counted - plan.agreeing, plan.counted)


def accuracy_losses(dense: PixelCounts, plan: PixelCounts) -> Float[np.ndarray, "n"]:
    """Returns by how much the share of wrong pixels of each image is larger than by the dense network, at least 0.

    Args:
      dense, plan: counts of the same images.

    Raises:
      UserError: there are no label maps.
    """
    if not dense.areas.right.shape[1]:
        raise UserError("The images have no label maps, so accuracy cannot be bounded: bound agreement, or label them.")
    return np.maximum(plan.wrong - dense.wrong, 0.0)


class PixelScores(NamedTuple):
    """What is reported of a network beside its risk.

    Attributes:
      mean_iou: with its interval over images; None without label maps.
      agreement: the share of the pixels of all images with the dense network's class.
    """

    mean_iou: Interval | None
    agreement: float

    @classmethod
    def of(cls, counts: PixelCounts) -> "PixelScores":
        """Returns the scores of images."""
        mean_iou = intervals(counts.areas).mean_iou if counts.areas.right.shape[1] else None
        return cls(mean_iou, float(counts.agreeing.sum() / max(counts.counted.sum(), 1)))


def _shares(parts: Int[np.ndarray, "n"], totals: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    return parts / np.maximum(totals, 1)
