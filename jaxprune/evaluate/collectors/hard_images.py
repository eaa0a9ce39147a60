"""Accuracy on the images that the network on smaller images gets wrong: what only tokens can give."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxprune.evaluate import Batch
from jaxprune.measures.intervals import NO_INTERVAL, Interval, share
from jaxprune.open.rivals import IMG_SIZE
from jaxprune.report.table import column


@dataclasses.dataclass(frozen=True)
class HardScore:
    """The accuracy of a network on hard images, with its interval (Wilson), and their number."""

    rescued: Interval = column("accuracy where smaller images fail", format=".1%")
    hard: int = column("hard images")


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
        smaller = [correct for name, correct in right.items() if name.startswith(f"{IMG_SIZE}=")]
        if not smaller:
            return {}
        hard = ~np.any(smaller, axis=0)
        count = int(hard.sum())
        of_hard = lambda correct: share(int((correct & hard).sum()), count) if count else NO_INTERVAL
        return {name: HardScore(of_hard(correct), count) for name, correct in right.items()}
