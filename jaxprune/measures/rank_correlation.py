"""Rank correlations with p-values and bootstrap intervals, to judge proxies.

"Which Tokens to Use?" (Haurum et al., 2023), Sec. 5.5: does a metric of patterns or features follow the difference in
accuracy?
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Real
from scipy import stats

_TOGETHER = 100  # draws per chunk, to bound the memory of pairwise comparisons


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

    >>> found = spearman(np.arange(5), np.array([1, 2, 4, 8, 16]))
    >>> round(found.value, 6), found.count
    (1.0, 5)

    Args:
      x, y: the pairs; those with a NaN are left out.
      draws: bootstrap draws for the interval; 0 leaves it NaN.
      seed: seed of the draws.
    """
    return _correlate(stats.spearmanr, _spearman_rows, x, y, draws, seed)


def kendall(x: Real[np.ndarray, "n"], y: Real[np.ndarray, "n"], *, draws: int = 1000, seed: int = 0) -> RankCorrelation:
    """Returns Kendall's τ, corrected for ties (τ-b); see `spearman`."""
    return _correlate(stats.kendalltau, _kendall_rows, x, y, draws, seed)


def _correlate(
    exact: Callable[[np.ndarray, np.ndarray], Any],
    of_rows: Callable[[np.ndarray, np.ndarray], np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    draws: int,
    seed: int,
) -> RankCorrelation:
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    known = ~(np.isnan(x) | np.isnan(y))
    x, y = x[known], y[known]
    nan = float("nan")
    if len(x) < 3 or not np.ptp(x) or not np.ptp(y):
        return RankCorrelation(nan, nan, nan, nan, len(x))
    value, p_value = exact(x, y)
    rows = np.random.default_rng(seed).integers(0, len(x), (draws, len(x)))
    # A draw with a constant side has no ranks.
    drawn = [found for part in np.array_split(rows, -(-draws // _TOGETHER) or 1) for found in of_rows(x[part], y[part])]
    drawn = [found for found in drawn if np.isfinite(found)]
    low, high = np.percentile(drawn, (2.5, 97.5)) if drawn else (nan, nan)
    return RankCorrelation(float(value), float(low), float(high), float(p_value), len(x))


def _spearman_rows(x: Float[np.ndarray, "m n"], y: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "m"]:
    ranks = (stats.rankdata(values, axis=1) for values in (x, y))
    one, other = (values - values.mean(1, keepdims=True) for values in ranks)
    return _ratio((one * other).sum(1), (one**2).sum(1) * (other**2).sum(1))


def _kendall_rows(x: Float[np.ndarray, "m n"], y: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "m"]:
    one, other = (np.sign(values[:, :, None] - values[:, None, :]) for values in (x, y))
    untied = np.abs(one).sum((1, 2)) * np.abs(other).sum((1, 2))
    return _ratio((one * other).sum((1, 2)), untied)


def _ratio(products: np.ndarray, squares: np.ndarray) -> np.ndarray:
    return np.divide(products, np.sqrt(squares), out=np.full(len(products), np.nan), where=squares > 0)
