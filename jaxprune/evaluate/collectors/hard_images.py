"""Accuracy on the images that the network on smaller images gets wrong: what only tokens can give."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from jaxprune.evaluate import Batch
from jaxprune.measures.intervals import NO_INTERVAL, Interval, share
from jaxprune.open.rivals import is_smaller_images
from jaxprune.report.table import column

RESCUED, HARD = "accuracy where smaller images fail", "hard images"


@dataclasses.dataclass(frozen=True)
class HardScore:
    """The accuracy of a network on hard images, with its interval (Wilson), and their number."""

    rescued: Interval = column(RESCUED, format=".1%")
    hard: int = column(HARD)

    @classmethod
    def of(cls, right: Bool[np.ndarray, "n"], hard: Bool[np.ndarray, "n"]) -> "HardScore":
        """Returns the score on hard images.

        >>> HardScore.of(np.array([True, False, True]), np.array([False, True, True])).hard
        2

        Args:
          right: which images the network gets right.
          hard: which of them are hard, see `hard_images`.
        """
        count = int(hard.sum())
        return cls(share(int((right & hard).sum()), count) if count else NO_INTERVAL, count)

    def cells(self) -> dict[str, float]:
        """Returns the cells of a row; {} without hard images."""
        ends = {RESCUED: self.rescued.value, f"{RESCUED} low": self.rescued.low, f"{RESCUED} high": self.rescued.high}
        return {**ends, HARD: self.hard} if self.hard else {}


def hard_images(smaller: Sequence[Bool[np.ndarray, "n"]]) -> Bool[np.ndarray, "n"]:
    """Returns the images that all networks on smaller images get wrong.

    >>> hard_images([np.array([True, False]), np.array([False, False])]).tolist()
    [False, True]

    Args:
      smaller: of each of these networks, at least one, which images it gets right.
    """
    return ~np.any(smaller, axis=0)


class HardImages:
    """Collects a `HardScore` by network, on the images that all networks on smaller images get wrong; {} without these.

    Every forward function of the pass computes `logits` of a network; those on smaller images are called "img_size=N".
    """

    def __init__(self) -> None:
        self._right: dict[str, list[np.ndarray]] = {}

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        for name, of_name in outputs.items():
            self._right.setdefault(name, []).append(of_name["logits"].argmax(-1) == batch["label"])

    def result(self) -> dict[str, HardScore]:
        """Returns the scores by network."""
        right = {name: np.concatenate(parts) for name, parts in self._right.items()}
        smaller = [correct for name, correct in right.items() if is_smaller_images(name)]
        if not smaller:
            return {}
        hard = hard_images(smaller)
        return {name: HardScore.of(correct, hard) for name, correct in right.items()}
