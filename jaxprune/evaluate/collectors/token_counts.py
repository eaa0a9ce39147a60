"""The number of tokens in use after each step of a plan whose counts are only upper bounds (ATS)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxprune import reduction
from jaxprune.evaluate import Batch
from jaxprune.report.table import column


@dataclasses.dataclass(frozen=True)
class CountCells:
    """The tokens in use in words, such as "57.1 of 98, 30.4 of 49", and their shares; empty for fixed counts."""

    tokens: str = column("rows", default="")
    rate: str = column("rate", default="")


class TokenCounts(NamedTuple):
    """The tokens in use after each step of a plan.

    Attributes:
      means: number of distinct tokens that hold patches, averaged over images, per step.
      bounds: the upper bound of each step.
      rates: `means` as shares of the patches of an image.
    """

    means: tuple[float, ...]
    bounds: tuple[int, ...]
    rates: tuple[float, ...]

    def cells(self) -> CountCells:
        """Returns the cells of a table."""
        pairs = zip(self.means, self.bounds, strict=True)
        tokens = ", ".join(f"{mean:.4g} of {bound}" for mean, bound in pairs)
        return CountCells(tokens, ", ".join(f"{rate:.3f}" for rate in self.rates))


def is_bounded(model: Any) -> bool:
    """Whether a step of a network's plan may leave fewer tokens than its count."""
    return any(reducer.leaves_absent == "always" for reducer in reduction.installed(model))


class TokenCountCollector:
    """Collects {network: `TokenCounts`} for plans whose counts are bounds.

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
            counts = [distinct_tokens(np.asarray(assign)).sum() for assign in outputs[name]["assign"]]
            self._sums[name] = self._sums.get(name, 0) + np.array(counts, np.int64)
        self._total += len(next(iter(batch.values())))

    def result(self) -> dict[str, TokenCounts]:
        """Returns the counts by network."""
        counts = {}
        for name, model in self._models.items():
            means = self._sums[name] / self._total
            bounds = tuple(reducer.num_tokens() for reducer in reduction.installed(model))
            counts[name] = TokenCounts(tuple(means.tolist()), bounds, tuple((means / model.num_patches).tolist()))
        return counts


def distinct_tokens(assign: np.ndarray) -> np.ndarray:
    """Counts the tokens that hold the patches of each image, (b,).

    Args:
      assign: the token of each patch, (b, p); -1 = dropped.
    """
    ordered = np.sort(assign, axis=1)
    return (ordered[:, :1] >= 0).sum(1) + ((np.diff(ordered, axis=1) > 0) & (ordered[:, 1:] >= 0)).sum(1)
