"""Networks under token-reduction plans compared with the dense network, image by image."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxprune.data.clips import one_view
from jaxprune.evaluate import Batch
from jaxprune.measures.intervals import Interval, share
from jaxprune.reduction import DENSE
from jaxprune.report.table import column

DRAWN = 8


@dataclasses.dataclass(frozen=True)
class Scores:
    """The accuracy of a network, and the share of images with the dense network's prediction."""

    accuracy: Interval = column("accuracy", format=".1%", best="max", ends=("low", "high"))
    agreement: float = column("agreement", format=".1%")


class Agreement:
    """Collects `Scores` by network: accuracy with a 95 % interval (Wilson), and agreement with the dense network.

    Every forward function of the pass computes `logits` of a network; one of them is `DENSE`.
    """

    def __init__(self) -> None:
        self._right: dict[str, int] = {}
        self._agree: dict[str, int] = {}
        self._total = 0

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        predictions = {name: of_name["logits"].argmax(-1) for name, of_name in outputs.items()}
        for name, predicted in predictions.items():
            self._right[name] = self._right.get(name, 0) + int((predicted == batch["label"]).sum())
            self._agree[name] = self._agree.get(name, 0) + int((predicted == predictions[DENSE]).sum())
        self._total += len(batch["label"])

    def result(self) -> dict[str, Scores]:
        """Returns the scores by network."""
        return {
            name: Scores(share(right, self._total), self._agree[name] / self._total)
            for name, right in self._right.items()
        }


class Disagreement(NamedTuple):
    """An image for which the prediction of a network differs from the dense one's.

    Attributes:
      name: of the network.
      image: uint8 (h, w, 3), or a clip.
      label: the true class.
      probabilities: of the network, (c,).
      dense: the class that the dense network predicts.
    """

    name: str
    image: np.ndarray
    label: int
    probabilities: np.ndarray
    dense: int


class Disagreements:
    """Collects pictures on which networks disagree, one `Disagreement` each.

    Args:
      most: maximum number; at most one per network and batch.
    """

    def __init__(self, most: int = DRAWN):
        self._most = most
        self._disagreements: list[Disagreement] = []

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        dense = outputs[DENSE]["logits"].argmax(-1)
        for name, of_name in outputs.items():
            for place in np.flatnonzero(of_name["logits"].argmax(-1) != dense)[:1]:
                if len(self._disagreements) < self._most:
                    image, label = one_view(batch["image"][place]), int(batch["label"][place])
                    probabilities = of_name["probabilities"][place]
                    self._disagreements.append(Disagreement(name, image, label, probabilities, int(dense[place])))

    def result(self) -> list[Disagreement]:
        """Returns the images."""
        return self._disagreements
