"""Rank correlations with p-values and bootstrap intervals, to judge proxies.

"Which Tokens to Use?" (Haurum et al., 2023), Sec. 5.5: does a metric of patterns or features follow the difference in
accuracy?
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Real

from jaxprune.measures import correlation
from jaxprune.measures.intervals import bootstrap_interval


class RankCorrelation(NamedTuple):
    """A rank correlation of n pairs.

    Attributes:
      value: from -1 to 1; NaN for fewer than 3 pairs, or if one side is constant.
      low, high: the 95 % interval (percentile bootstrap over pairs).
      p_value: two-sided p-value of no correlation.
      count: the number n of pairs.
    """

    value: float
    low: float
    high: float
    p_value: float
    count: int


def spearman(
    x: Real[np.ndarray, "n"], y: Real[np.ndarray, "n"], *, draws: int = 1000, seed: int = 0
) -> RankCorrelation:
    """Returns Spearman's ρ; ties get their mean rank.

    >>> rho = spearman(np.arange(5), np.array([1, 2, 4, 8, 16]))
    >>> round(rho.value, 6), rho.count
    (1.0, 5)

    Args:
      x, y: the pairs; those with a NaN are left out.
      draws: bootstrap draws for the interval; 0 leaves it NaN.
      seed: seed of the draws.
    """
    return _correlate(scipy.stats.spearmanr, correlation.spearman, x, y, draws, seed)


def kendall(x: Real[np.ndarray, "n"], y: Real[np.ndarray, "n"], *, draws: int = 1000, seed: int = 0) -> RankCorrelation:
    """Returns Kendall's τ, corrected for ties (τ-b); see `spearman`."""
    return _correlate(scipy.stats.kendalltau, correlation.kendall, x, y, draws, seed)


def _correlate(
    exact: Callable[[np.ndarray, np.ndarray], Any],
    of_rows: Callable[[np.ndarray, np.ndarray], np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    draws: int,
    seed: int,
) -> RankCorrelation:
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    complete = ~(np.isnan(x) | np.isnan(y))
    x, y = x[complete], y[complete]
    nan = float("nan")
    if len(x) < 3 or not np.ptp(x) or not np.ptp(y):
        return RankCorrelation(nan, nan, nan, nan, len(x))
    value, p_value = exact(x, y)
    # A draw with a constant side has no ranks.
    low, high = bootstrap_interval(len(x), lambda rows: of_rows(x[rows], y[rows]), draws=draws, seed=seed)
    return RankCorrelation(float(value), low, high, float(p_value), len(x))
