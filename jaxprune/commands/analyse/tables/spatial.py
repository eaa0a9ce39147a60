"""Where plans keep patches: distance from the centre, spatial coherence, depth, evenness.

"Which Tokens to Use?" (Haurum et al., 2023), supplement D, L and M, as numbers: one value per image, and its spread.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Real

from jaxprune.evaluate.collectors.observations import Observed
from jaxprune.evaluate.collectors.token_counts import distinct_tokens
from jaxprune.measures.intervals import Spread, jackknife_interval


def centre_distance(masks: Bool[np.ndarray, "n p"], grid: tuple[int, int]) -> Float[np.ndarray, "n"]:
    """Returns the mean distance of kept patches from the centre, relative to the mean of all patches.

    >>> centre_distance(np.eye(9, dtype=bool)[[4]], (3, 3))
    array([0.])
    """
    rows, columns = np.ix_(*(np.arange(side) - (side - 1) / 2 for side in grid))
    distances = np.hypot(rows, columns).reshape(-1)
    return masks @ (distances / distances.mean()) / np.maximum(masks.sum(1), 1)


def coherence(masks: Bool[np.ndarray, "n p"], grid: tuple[int, int]) -> Float[np.ndarray, "n"]:
    """Returns the share of the neighbours of kept patches (left, right, above, below) that are kept too.

    >>> coherence(np.array([[True, True, False, False]]), (1, 4)).round(3)
    array([0.667])
    """
    kept_maps = masks.reshape(-1, *grid)
    pairs = ((kept_maps[:, 1:], kept_maps[:, :-1]), (kept_maps[:, :, 1:], kept_maps[:, :, :-1]))
    shared = sum(2 * (first & second).sum((1, 2)) for first, second in pairs)
    total = sum(first.sum((1, 2)) + second.sum((1, 2)) for first, second in pairs)
    return shared / np.maximum(total, 1)


def unevenness(depths: Real[np.ndarray, "n p"]) -> tuple[float, float, float]:
    """Returns the standard deviation of the mean depth over positions, and its 95 % interval (jackknife over images).

    The noise of a few images makes the value too high; the interval is corrected for that.

    >>> unevenness(np.array([[2, 2, 4]] * 3)) == (np.std([2, 2, 4]),) * 3
    True
    """
    depths = np.asarray(depths, np.float64)
    mean = depths.mean(0)
    deviations = depths - mean
    deviations -= deviations.mean(1, keepdims=True)
    # On the scale of variances, whose bias and error are nearly proportional to 1 / n; a root is neither near 0. The
    # mean of the other images is off the mean of all by the share 1 / (n - 1) of what the image left out is off.
    share = 1 / max(len(depths) - 1, 1)
    without = (
        mean.var() - 2 * share * (deviations @ (mean - mean.mean())) / len(mean) + share**2 * (deviations**2).mean(1)
    )
    ends = jackknife_interval(mean.var(), without)
    low, high = np.sqrt(np.maximum(ends, 0))
    return float(mean.std()), float(low), float(high)


def spatial_rows(observations: Sequence[Observed]) -> list[dict[str, Any]]:
    """Returns a row per plan and step: share of allowed rows in use, distance from the centre, coherence.

    `coherence chance` is that of the same number of random patches.
    """
    rows = []
    for observed in (observation for observation in observations if observation.member.layers):
        member, patterns = observed.member, observed.patterns
        for step, (allowed, grid) in enumerate(zip(member.num_keep, member.grids, strict=True)):
            start = {"network": member.network, "plan": member.plan, "method": member.method, "step": step + 1}
            row: dict[str, Any] = {**start, "patches": int(np.prod(grid)), "allowed": allowed}
            row |= _columns("in use", distinct_tokens(patterns.assign[step]) / max(allowed, 1))
            if observed.keeps and len(grid) == 2:
                masks = patterns.masks[step]
                row |= _columns("centre distance", centre_distance(masks, grid))
                row |= _columns("coherence", coherence(masks, grid))
                row["coherence chance"] = float((masks.sum(1).mean() - 1) / max(masks.shape[1] - 1, 1))
            rows.append({**row, "images": len(patterns.assign[step])})
    return rows


def depth_rows(observations: Sequence[Observed]) -> list[dict[str, Any]]:
    """Returns a row per plan that keeps patches: the mean depth of patches in blocks, and its unevenness."""
    rows = []
    for observed in observations:
        if not observed.keeps or len(set(observed.member.grids)) > 1:
            continue
        depths, member = observed.patterns.depths(), observed.member
        value, low, high = unevenness(depths)
        start = {"network": member.network, "plan": member.plan, "method": member.method}
        row = {**start, "allowed": ", ".join(map(str, member.num_keep)), **_columns("depth", depths.mean(1))}
        row |= {"unevenness": value, "unevenness low": low, "unevenness high": high, "images": len(depths)}
        rows.append(row)
    return rows


def _columns(name: str, values: np.ndarray) -> dict[str, float]:
    mean, std = Spread.of(values)
    return {name: mean, f"{name} std": std}
