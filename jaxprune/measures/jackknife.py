"""Intervals of statistics that are biased in small samples, by the jackknife (Efron & Stein, 1981).

A bootstrap draw repeats images. Where the noise of a sample increases a statistic (the spread of means over places, the
precision at a positive whose copies rank beside it), the draws lie above the estimate, and percentile, basic and BCa
intervals of them can all leave it out. Leaving out single images repeats none.
"""

import numpy as np
from jaxtyping import Float
from scipy import stats


def jackknife_interval(value: float, without: Float[np.ndarray, "n"]) -> tuple[float, float]:
    """Returns the 95 % interval of a statistic: corrected for bias, ± Student's t standard errors.

    It is extended to the statistic itself where that lies outside, because of its bias. NaN for fewer than 2 images, or
    where the statistic is undefined without one of them.

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
        return float("nan"), float("nan")
    centre = value - (count - 1) * (without.mean() - value)
    half = stats.t.ppf(0.975, count - 1) * np.sqrt((count - 1) * without.var())
    return float(min(value, centre - half)), float(max(value, centre + half))
