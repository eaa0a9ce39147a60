"""Effects of plans on images with several labels: mean average precision."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped

from jaxprune.metrics import average_precision

_DRAWS = 200


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
        return float(self._of_classes(member).mean())

    def columns(self, member: tuple[str, str], base: tuple[str, str]) -> Mapping[str, Any]:
        """The cells of a member: mAP and its change from the dense network, each with a 95 % interval (bootstrap)."""
        drawn = {name: drawn_map(self.logits[name], self.labels) for name in (member, base)}
        low, high = np.percentile(drawn[member], (2.5, 97.5))
        least, most = np.percentile(drawn[member] - drawn[base], (2.5, 97.5))
        own, theirs = self.score(member), self.score(base)
        return {
            "mAP": own,
            "mAP low": float(low),
            "mAP high": float(high),
            "change": own - theirs,
            "change low": float(least),
            "change high": float(most),
        }

    def by_class(self, base: tuple[str, str], class_names: Sequence[str]) -> list[dict[str, Any]]:
        """A row for each class that occurs: its images, the dense average precision, and its change under each plan."""
        dense, there = self._of_classes(base), np.flatnonzero(self.labels.any(0))
        plans = {name[1]: self._of_classes(name) for name in self.logits if name[0] == base[0] and name != base}
        rows = []
        for place, number in enumerate(there.tolist()):
            start = {
                "network": base[0],
                "class": class_names[number],
                "images": int((self.labels[:, number] > 0).sum()),
            }
            changes = {plan: float(own[place] - dense[place]) for plan, own in plans.items()}
            rows.append({**start, "AP, dense": float(dense[place]), **changes})
        return sorted(rows, key=lambda row: sum(row[plan] for plan in plans))

    def _of_classes(self, member: tuple[str, str]) -> np.ndarray:
        return average_precision(self.logits[member], self.labels)[self.labels.any(0)]


def drawn_map(
    scores: Float[np.ndarray, "n c"], labels: Shaped[np.ndarray, "n c"], *, draws: int = _DRAWS, seed: int = 0
) -> Float[np.ndarray, "draws"]:
    """Returns bootstrap draws of the mean average precision; a seed gives the same draws for all networks.

    Args:
      scores: one for each image and class.
      labels: positive = the class is present; classes without an image are left out.
      draws: number of bootstrap draws.
    """
    there = labels.any(0)
    scores, hits = scores[:, there], labels[:, there] > 0
    order = np.argsort(-scores, axis=0, kind="stable")
    hits: Bool[np.ndarray, "n c"] = np.take_along_axis(hits, order, axis=0)
    rng, found = np.random.default_rng(seed), []
    for _ in range(draws):
        times = np.bincount(rng.integers(0, len(scores), len(scores)), minlength=len(scores)).astype(np.float32)
        # An image that is drawn twice counts twice at its rank.
        weights = times[order]
        right = weights * hits
        precision = np.cumsum(right, axis=0) / np.maximum(np.cumsum(weights, axis=0), 1)
        positives = right.sum(0)
        found.append(((precision * right).sum(0) / np.maximum(positives, 1))[positives > 0].mean())
    return np.asarray(found, np.float64)
