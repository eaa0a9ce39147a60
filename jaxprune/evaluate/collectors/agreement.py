"""Networks under token-reduction plans compared with the dense network, image by image."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxprune.data.clips import one_view
from jaxprune.evaluate import Batch
from jaxprune.measures.intervals import wilson_interval
from jaxprune.reduction import DENSE
from jaxprune.report.pictures.film_strip import still
from jaxprune.report.pictures.prediction_card import prediction_card
from jaxprune.report.pictures.text import label

SHOWN = 8


class Agreement:
    """Collects for each network its accuracy with a 95 % interval (Wilson) and its agreement with the dense one.

    Agreement is the fraction of images for which both predict the same class. Every forward function of the pass
    computes `logits` of a network; one of them is `DENSE`.
    """

    def __init__(self) -> None:
        self._right: dict[str, int] = {}
        self._agree: dict[str, int] = {}
        self._total = 0

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        predictions = {name: found["logits"].argmax(-1) for name, found in outputs.items()}
        for name, own in predictions.items():
            self._right[name] = self._right.get(name, 0) + int((own == batch["label"]).sum())
            self._agree[name] = self._agree.get(name, 0) + int((own == predictions[DENSE]).sum())
        self._total += len(batch["label"])

    def result(self) -> dict[str, dict[str, float]]:
        """Returns by network: accuracy, low, high and agreement."""
        scores = {}
        for name, right in self._right.items():
            low, high = wilson_interval(right, self._total)
            agreement = self._agree[name] / self._total
            scores[name] = {"accuracy": right / self._total, "low": low, "high": high, "agreement": agreement}
        return scores


class Disagreements:
    """Collects pictures of images for which the prediction of a network differs from the dense one's.

    Args:
      class_names: of the classes.
      shown: maximum number of pictures; at most one per network and batch.
    """

    def __init__(self, class_names: Sequence[str], shown: int = SHOWN):
        self._class_names, self._shown = class_names, shown
        self._pictures: list[np.ndarray] = []

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        names, dense = self._class_names, outputs[DENSE]["logits"].argmax(-1)
        for name, found in outputs.items():
            for row in np.flatnonzero(found["logits"].argmax(-1) != dense)[:1]:
                if len(self._pictures) < self._shown:
                    confidences = _softmax(found["logits"][row])
                    card = prediction_card(
                        still(one_view(batch["image"][row])), names, confidences, truth=int(batch["label"][row])
                    )
                    self._pictures.append(label(card, f"{name}; dense: {names[dense[row]]}"))

    def result(self) -> list[np.ndarray]:
        """Returns the pictures."""
        return self._pictures


def _softmax(logits: np.ndarray) -> np.ndarray:
    odds = np.exp(logits - logits.max())
    return odds / odds.sum()
