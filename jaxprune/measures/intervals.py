"""95 % intervals: of a proportion (Wilson), of a paired difference (normal), and of any statistic (jackknife).

The jackknife (Efron & Stein, 1981) is for statistics that are biased in small samples. A bootstrap draw repeats images.
Where the noise of a sample increases a statistic (the spread of means over places, the precision at a positive whose
copies rank beside it), the draws lie above the estimate, and percentile, basic and BCa intervals of them can all leave
it out. Leaving out single images repeats none.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from jaxprune.metrics import NORMAL_95, wilson_interval


class Interval(NamedTuple):
    """A value and the ends of its interval."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half of its width."""
        return (self.high - self.low) / 2


class Spread(NamedTuple):
    """A mean over images and their population standard deviation."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> "Spread":
        """Makes a `Spread` from one value per image."""
        return cls(float(np.mean(values)), float(np.std(values)))


def proportion(count: int, total: int) -> Interval:
    """Returns a proportion with its interval (Wilson); the proportion is 0 where nothing was counted."""
    return Interval(count / max(total, 1), *wilson_interval(count, total))


def paired_difference(first: Bool[np.ndarray, "n"], second: Bool[np.ndarray, "n"]) -> Interval:
    """Returns the difference of two proportions on the same images, with its interval (normal, paired by image).

    >>> paired_difference(np.array([True, True, False, True]), np.array([True, False, True, False]))
    Interval(value=0.25, low=-0.6883171, high=1.1883171)
    """
    difference = first.astype(float) - second.astype(float)
    mean = float(difference.mean())
    half = NORMAL_95 * difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else float("nan")
    return Interval(mean, float(difference.mean() - half), float(difference.mean() + half))


def jackknife_interval(value: float, without: Float[np.ndarray, "n"]) -> Interval:
    """Returns a statistic with its interval: corrected for bias, ± Student's t standard errors.

    It is extended to the statistic itself where that lies outside, because of its bias. NaN for fewer than 2 images, or
    where the statistic is undefined without one of them.

    >>> values = np.array([1.0, 2.0, 4.0, 5.0])
    >>> [round(number, 3) for number in jackknife_interval(values.mean(), (values.sum() - values) / 3)]
    [3.0, 0.095, 5.905]

    Args:
      value: the statistic of all n images.
      without: the statistic of all images but one, for each image.
    """
    count = len(without)
    if count < 2 or not np.isfinite(without).all():
        return Interval(value, float("nan"), float("nan"))
    centre = value - (count - 1) * (without.mean() - value)
    half = stats.t.ppf(0.975, count - 1) * np.sqrt((count - 1) * without.var())
    return Interval(value, float(min(value, centre - half)), float(max(value, centre + half)))
