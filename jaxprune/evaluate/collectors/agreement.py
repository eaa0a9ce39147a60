"""Networks under token-reduction plans compared with the dense network, image by image."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from jaxprune.data.clips import one_view
from jaxprune.evaluate import Batch
from jaxprune.measures.intervals import Interval, difference, paired_difference, share
from jaxprune.reduction import DENSE
from jaxprune.report.table import column

DRAWN = 8
BLANK = (None, None, None)  # the difference of a network from itself


@dataclasses.dataclass(frozen=True)
class Scores:
    """The accuracy of a network, and the share of images with the dense network's prediction.

    Attributes:
      accuracy: with its interval (Wilson).
      agreement: share of the images.
      difference: accuracy minus the dense network's, paired by image (Agresti and Min); `BLANK` for the dense network.
      right: by image, whether the prediction is right, to pair two networks; None where it was not kept.
    """

    accuracy: Interval = column("accuracy", format=".1%", best="max", ends=("low", "high"))
    agreement: float = column("agreement", format=".1%")
    difference: Interval | tuple[None, None, None] = column("accuracy − dense", format="+.1%", default=BLANK)
    right: Bool[np.ndarray, "n"] | None = dataclasses.field(default=None, repr=False, compare=False)

    def over(self, rival: "Scores") -> Interval:
        """Returns this accuracy minus another: paired by image where both were kept, else of independent samples."""
        if self.right is None or rival.right is None:
            return difference(self.accuracy, rival.accuracy)
        return paired_difference(self.right, rival.right)


class Agreement:
    """Collects `Scores` by network: accuracy, its difference from the dense network's, and agreement with that.

    Every forward function of the pass computes `logits` of a network; one of them is `DENSE`.
    """

    def __init__(self) -> None:
        self._right: dict[str, list[np.ndarray]] = {}
        self._agree: dict[str, int] = {}

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        predictions = {name: of_name["logits"].argmax(-1) for name, of_name in outputs.items()}
        for name, predicted in predictions.items():
            self._right.setdefault(name, []).append(predicted == batch["label"])
            self._agree[name] = self._agree.get(name, 0) + int((predicted == predictions[DENSE]).sum())

    def result(self) -> dict[str, Scores]:
        """Returns the scores by network."""
        right = {name: np.concatenate(parts) for name, parts in self._right.items()}
        return {
            name: Scores(
                share(int(correct.sum()), len(correct)),
                self._agree[name] / len(correct),
                BLANK if name == DENSE else paired_difference(correct, right[DENSE]),
                correct,
            )
            for name, correct in right.items()
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
