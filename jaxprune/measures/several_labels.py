"""Effects of plans on images with several labels: mean average precision."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from jaxprune.measures.intervals import jackknife_interval
from jaxprune.metrics import average_precision


class Rankings(NamedTuple):
    """The rankings of images by a network and its plans, for each class.

    Attributes:
      labels: 1 for the classes present, (n, c).
      logits: by member, (network, plan).
    """

    labels: Shaped[np.ndarray, "n c"]
    logits: dict[tuple[str, str], np.ndarray]

    by = "classifier"
    measure = "mAP"

    def score(self, member: tuple[str, str]) -> float:
        """The mean average precision over the classes that occur, in [0, 1]."""
        return mean_over_present(self.logits[member], self.labels)

    def columns(self, member: tuple[str, str], base: tuple[str, str]) -> Mapping[str, Any]:
        """The cells of a member: mAP and its change from the dense network, each with a 95 % interval (jackknife).

        The interval of the change is paired by image.
        """
        without = {name: map_without_each(self.logits[name], self.labels) for name in {member, base}}
        score, change = self.score(member), self.score(member) - self.score(base)
        low, high = _within(jackknife_interval(score, without[member]), 0.0)
        least, most = _within(jackknife_interval(change, without[member] - without[base]), -1.0)
        return {
            "mAP": score,
            "mAP low": low,
            "mAP high": high,
            "change": change,
            "change low": least,
            "change high": most,
        }

    def by_class(self, base: tuple[str, str], class_names: Sequence[str]) -> list[dict[str, Any]]:
        """A row for each class that occurs: its images, the dense average precision, and its change under each plan."""
        dense, class_ids = self._of_classes(base), np.flatnonzero(self.labels.any(0))
        plans = {name[1]: self._of_classes(name) for name in self.logits if name[0] == base[0] and name != base}
        rows = []
        for place, number in enumerate(class_ids.tolist()):
            start = {
                "network": base[0],
                "class": class_names[number],
                "images": int((self.labels[:, number] > 0).sum()),
            }
            changes = {plan: float(of_plan[place] - dense[place]) for plan, of_plan in plans.items()}
            rows.append({**start, "AP, dense": float(dense[place]), **changes})
        return sorted(rows, key=lambda row: sum(row[plan] for plan in plans))

    def _of_classes(self, member: tuple[str, str]) -> np.ndarray:
        return _of_present(self.logits[member], self.labels)


def mean_over_present(scores: Float[np.ndarray, "n c"], labels: Shaped[np.ndarray, "n c"]) -> float:
    """Returns the mean average precision over the classes that occur, in [0, 1]; 0 where none does.

    >>> scores, labels = np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([[1, 0], [0, 0]])
    >>> f"{mean_over_present(scores, labels):.2f}"
    '1.00'

    Args:
      scores: one for each image and class.
      labels: positive = the class is present.
    """
    of_classes = _of_present(scores, labels)
    return float(of_classes.mean()) if len(of_classes) else 0.0


def _of_present(scores: Float[np.ndarray, "n c"], labels: Shaped[np.ndarray, "n c"]) -> Float[np.ndarray, "p"]:
    """The average precision of each class that occurs."""
    return average_precision(scores, labels)[(np.asarray(labels) > 0).any(0)]


def map_without_each(scores: Float[np.ndarray, "n c"], labels: Shaped[np.ndarray, "n c"]) -> Float[np.ndarray, "n"]:
    """Returns the mean average precision of all images but one, for each image; NaN where no class is left.

    Args:
      scores: one for each image and class.
      labels: positive = the class is present; classes without an image are left out.
    """
    is_present = np.asarray(labels) > 0
    ranks, sums, counts = np.arange(1, len(is_present) + 1), np.zeros(len(is_present)), np.zeros(len(is_present))
    for number in np.flatnonzero(is_present.any(0)):
        order = np.argsort(-np.asarray(scores[:, number], np.float64), kind="stable")
        hit = is_present[order, number]
        hits = np.cumsum(hit)
        # Images behind the one left out move up by a rank, and have a hit less before them if it was one.
        moved = np.maximum(ranks - 1, 1)
        before = np.cumsum(hit * hits / ranks) - hit * hits / ranks
        behind = np.where(hit, _behind(hit * (hits - 1) / moved), _behind(hit * hits / moved))
        positives = hits[-1] - hit
        sums[order] += (before + behind) / np.maximum(positives, 1)
        counts[order] += positives > 0
    return np.divide(sums, counts, out=np.full(len(is_present), np.nan), where=counts > 0)


def _behind(values: np.ndarray) -> np.ndarray:
    """For each place the sum of the values behind it."""
    return values.sum() - np.cumsum(values)


def _within(interval: tuple[float, float], least: float) -> tuple[float, float]:
    """An interval inside the range of its statistic, from `least` to 1."""
    return max(interval[0], least), min(interval[1], 1.0)
