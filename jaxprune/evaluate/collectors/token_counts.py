"""The number of rows in use after each step of a plan whose counts are only upper bounds (ATS)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxprune import reduction
from jaxprune.evaluate import Batch


class Realised(NamedTuple):
    """The rows in use after each step of a plan.

    Attributes:
      rows: number of distinct rows that hold patches, averaged over images, per step.
      bounds: the upper bound of each step.
      rates: `rows` as shares of the patches of an image.
    """

    rows: tuple[float, ...]
    bounds: tuple[int, ...]
    rates: tuple[float, ...]

    def columns(self) -> dict[str, str]:
        """The cells of a table: "57.1 of 98, 30.4 of 49", and the rates."""
        pairs = zip(self.rows, self.bounds, strict=True)
        return {
            "rows": ", ".join(f"{rows:.4g} of {bound}" for rows, bound in pairs),
            "rate": ", ".join(f"{rate:.3f}" for rate in self.rates),
        }


def is_bounded(model: Any) -> bool:
    """Whether a step of a network's plan may leave fewer rows than its count."""
    return any(reducer.leaves_absent == "always" for reducer in reduction.installed(model))


class RealisedRows:
    """Collects {network: `Realised`} for plans whose counts are bounds.

    Args:
      models: by the name of the forward function that computes `assign`, see `nn.HostOutput`.
    """

    def __init__(self, models: Mapping[str, Any]):
        self._models = {name: model for name, model in models.items() if is_bounded(model)}
        self._sums: dict[str, np.ndarray] = {}
        self._total = 0

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        for name in self._models:
            counts = [distinct_rows(np.asarray(assign)).sum() for assign in outputs[name]["assign"]]
            self._sums[name] = self._sums.get(name, 0) + np.array(counts, np.int64)
        self._total += len(next(iter(batch.values())))

    def result(self) -> dict[str, Realised]:
        """Returns what was found by network."""
        found = {}
        for name, model in self._models.items():
            rows = self._sums[name] / self._total
            bounds = (reducer.num_tokens() for reducer in reduction.installed(model))
            found[name] = Realised(tuple(rows.tolist()), tuple(bounds), tuple((rows / model.num_patches).tolist()))
        return found


def distinct_rows(assign: np.ndarray) -> np.ndarray:
    """Counts the rows that hold the patches of each image, (b,).

    Args:
      assign: the row of each patch, (b, p); -1 = dropped.
    """
    ordered = np.sort(assign, axis=1)
    return (ordered[:, :1] >= 0).sum(1) + ((np.diff(ordered, axis=1) > 0) & (ordered[:, 1:] >= 0)).sum(1)
