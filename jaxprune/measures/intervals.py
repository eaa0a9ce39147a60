"""Spreads, and 95 % intervals: of shares, of means of many or few values, of statistics (bootstrap, jackknife)."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int, Real

from jaxprune.ops.host_random import host_generator

Z = 1.96  # two-sided 95 % quantile of the normal distribution
_TOGETHER = 100  # bootstrap draws per chunk, to bound the memory of pairwise comparisons


class Interval(NamedTuple):
    """A value and the ends of its interval."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half of its width."""
        return (self.high - self.low) / 2


NO_INTERVAL = Interval(math.nan, math.nan, math.nan)  # of what was not measured


class Spread(NamedTuple):
    """A mean over images and their population standard deviation."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> "Spread":
        """Makes a `Spread` from one value per image."""
        return cls(float(np.mean(values)), float(np.std(values)))


def share(count: int, total: int) -> Interval:
    """Returns a share with its Wilson score interval; 0 where nothing was counted."""
    return Interval(count / max(total, 1), *wilson_interval(count, total))


def mean_share(shares: Real[np.ndarray, "n"]) -> Interval:
    """Returns the mean of numbers in [0, 1] with a Wilson interval; of zeros and ones it is that of their share.

    It is that of as many zeros and ones as say as much about the mean: the less the numbers vary, the more these are,
    up to n² as few numbers may happen to be equal.

    >>> mean_share(np.array([0, 1, 1, 1])) == share(3, 4)
    True
    >>> round(mean_share(np.array([0.2, 0.4, 0.6, 0.8])).half, 4), round(share(8, 16).half, 4)
    (0.22, 0.22)
    """
    values = np.asarray(shares, np.float64)
    total = values.sum()
    if not len(values) or ((values == 0) | (values == 1)).all():
        return share(int(total), len(values))
    mean = float(total / len(values))
    most = mean * (1 - mean)  # the variance of zeros and ones
    count = len(values) * most / max(float(values.var()), most / len(values))
    return Interval(mean, *wilson_interval(mean * count, count))


def paired_difference(first: Bool[np.ndarray, "n"], second: Bool[np.ndarray, "n"]) -> Interval:
    """Returns the difference of two shares of the same images, with its interval, paired by image.

    The interval is Agresti and Min's (2005): the normal one of two more images, half of each side. Where no image
    changes sides, or few images are there, it stays as wide as they leave open; the plain normal one would be empty.

    >>> difference = paired_difference(np.ones(98, bool), np.ones(98, bool))
    >>> difference.value, round(difference.low, 4), round(difference.high, 4)
    (0.0, -0.0196, 0.0196)
    """
    won, lost, total = int((first & ~second).sum()), int((second & ~first).sum()), len(first)
    centre, sides = (won - lost) / (total + 2), (won + lost + 1) / (total + 2)
    half = Z * math.sqrt((sides - centre**2) / (total + 2))
    return Interval((won - lost) / max(total, 1), max(centre - half, -1.0), min(centre + half, 1.0))


def difference(first: Interval, second: Interval) -> Interval:
    """Returns the difference of two shares with its interval, from theirs (Newcombe, 1998, method 10).

    It is for independent samples, and too wide for shares of the same images: `paired_difference` needs every image.

    >>> [round(end, 3) for end in difference(share(56, 70), share(48, 80))]
    [0.2, 0.052, 0.334]
    """
    low = math.hypot(first.value - first.low, second.high - second.value)
    high = math.hypot(first.high - first.value, second.value - second.low)
    value = first.value - second.value
    return Interval(value, value - low, value + high)


def wilson_interval(correct: float | int, total: float | int, z: float = Z) -> tuple[float, float]:
    """Returns the Wilson score interval of a share; (0, 1) where nothing was counted."""
    if not total:
        return 0.0, 1.0
    p, spread = correct / total, z * z / total
    centre = (p + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(p * (1 - p) / total + spread / (4 * total))
    return max(centre - half, 0.0), min(centre + half, 1.0)  # a share of 0 or 1 is rounded past it


def normal_interval(values: Real[np.ndarray, "n"]) -> tuple[float, float]:
    """Returns the interval of the mean of many values, ± `Z` standard errors; NaN for a single value."""
    half = Z * values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(values.mean() - half), float(values.mean() + half)


def mean_interval(mean: float, std: float, count: int) -> Interval:
    """Returns a mean of many values with its interval, ± `Z` standard errors; NaN for a single value.

    >>> round(mean_interval(0.5, 0.1, 101).half, 6)
    0.0196

    Args:
      mean: the mean.
      std: the population standard deviation of the values.
      count: their number.
    """
    half = Z * std / math.sqrt(count - 1) if count > 1 else math.nan
    return Interval(mean, mean - half, mean + half)


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean of a few runs and the half-width of its Student's t interval, NaN for a single run."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    return mean, float(scipy.stats.t.ppf(0.975, len(values) - 1) * scipy.stats.sem(values))


def bootstrap_interval(
    count: int,
    statistic: Callable[[Int[np.ndarray, "m n"]], Float[np.ndarray, "m"]],
    *,
    draws: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Returns the percentile interval of a statistic over draws with replacement; NaN without a finite draw.

    >>> values = np.arange(100.0)
    >>> low, high = bootstrap_interval(100, lambda rows: values[rows].mean(1))
    >>> 43 < low < 45 and 54 < high < 56
    True

    Args:
      count: number n of values.
      statistic: (m, n) drawn indices -> (m,) the statistic of each draw; draws for which it is not finite are left out.
      draws: number of draws.
      seed: seed of the draws.
    """
    chunks = np.array_split(drawn_with_replacement(count, draws, seed), -(-draws // _TOGETHER) or 1)
    return percentile_interval(np.concatenate([np.asarray(statistic(chunk)) for chunk in chunks]))


def drawn_with_replacement(count: int, draws: int, seed: int) -> Int[np.ndarray, "m n"]:
    """The indices of `count` values in each draw of a bootstrap."""
    return host_generator(seed).integers(0, count, (draws, count))


def percentile_interval(draw_values: Float[np.ndarray, "m"]) -> tuple[float, float]:
    """Returns the 95 % interval of a statistic by its values in the draws of a bootstrap; NaN without a finite one."""
    finite = draw_values[np.isfinite(draw_values)]
    if not len(finite):
        return math.nan, math.nan
    low, high = np.percentile(finite, (2.5, 97.5))
    return float(low), float(high)


def jackknife_interval(value: float, without: Float[np.ndarray, "n"]) -> tuple[float, float]:
    """Returns the interval of a statistic: corrected for bias, ± Student's t standard errors (Efron & Stein, 1981).

    For statistics that are biased in small samples. A bootstrap draw repeats images. Where the noise of a sample
    increases a statistic (the spread of means over places, the precision at a positive whose copies rank beside it),
    the draws lie above the estimate, and percentile, basic and BCa intervals of them can all leave it out. Leaving out
    single images repeats none.

    The interval is extended to the statistic itself where that lies outside, because of its bias. NaN for fewer than 2
    images, or where the statistic is undefined without one of them.

    >>> values = np.array([1.0, 2.0, 4.0, 5.0])
    >>> low, high = jackknife_interval(values.mean(), (values.sum() - values) / 3)
    >>> round(low, 3), round(high, 3)
    (0.095, 5.905)

    Args:
      value: the statistic of all n images.
      without: the statistic of all images but one, for each image.
    """
    count = len(without)
    if count < 2 or not np.isfinite(without).all():
        return math.nan, math.nan
    centre = value - (count - 1) * (without.mean() - value)
    half = scipy.stats.t.ppf(0.975, count - 1) * np.sqrt((count - 1) * without.var())
    return float(min(value, centre - half)), float(max(value, centre + half))
