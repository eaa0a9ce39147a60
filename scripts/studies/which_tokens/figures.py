"""The figures by which `claims.py` judges the findings of "Which Tokens to Use?", with 95 % intervals.

A figure is computed from the tables of an analysis, or is None if what it needs is not in them.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxprune.measures.heat_maps import spearman
from jaxprune.measures.overlap import over_chance
from jaxprune.reduction import DENSE
from jaxprune.reduction.parts.radial_patterns import NORMS

Row = Mapping[str, Any]
Rows = Sequence[Row]
Tables = Mapping[str, Rows]

PRUNING = ("topk", "evit", "dynamicvit")  # methods that keep a fixed number of patches
CENTRES = ("kmedoids", "dpc_knn")
HARD, SOFT = ("tome", *CENTRES), ("sit", "patch_merger", "sinkhorn")
LEARNED = (*PRUNING, "ats", *CENTRES)
_Z, _DRAWS = 1.96, 1000


class Figure(NamedTuple):
    """A number with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def minus(self, figure: "Figure") -> "Figure":
        """The difference; its interval is an upper bound, valid for any correlation of the two."""
        half = (self.high - self.low + figure.high - figure.low) / 2
        return Figure(self.value - figure.value, self.value - figure.value - half, self.value - figure.value + half)


def mean_of(rows: Iterable[Row], column: str, *, scale: Callable[[Row, float], float] | None = None) -> Figure | None:
    """Returns the mean of a column over rows, with the interval over images.

    Rows share the same images: the interval assumes fully correlated rows, and is conservative.

    Args:
      rows: rows with `column`, its deviation between images and `images`; others are ignored.
      scale: (row, value) -> value, linear in the value; rows for which it is NaN are ignored.
    """
    intervals = []
    for row in rows:
        if column not in row or not math.isfinite(row[column]):
            continue
        half = _Z * row.get(f"{column} std", 0.0) / math.sqrt(row["images"])
        interval = [row[column], row[column] - half, row[column] + half]
        interval = [scale(row, value) for value in interval] if scale else interval
        if math.isfinite(interval[0]):
            intervals.append(interval)
    return _mean(intervals)


def _mean(intervals: Sequence[Sequence[float]]) -> Figure | None:
    return Figure(*map(float, np.mean(intervals, axis=0))) if intervals else None


def _difference(first: Figure | None, second: Figure | None) -> Figure | None:
    return None if first is None or second is None else first.minus(second)


def rescaled(column: str) -> Callable[[Row, float], float]:
    """Returns (row, value) -> the value on the scale of `over_chance`, by the row's chance."""
    return lambda row, value: over_chance(value, row[f"{column} chance"])


def _of(rows: Rows, methods: Sequence[str], column: str = "method") -> list[Row]:
    return [row for row in rows if row.get(column) in methods]


def _pair(row: Row) -> set[str]:
    return {row["method"], row["other method"]}


def last_steps(rows: Iterable[Row]) -> list[Row]:
    """The last step of each plan, or pair of plans: some have more steps than others."""
    last: dict[tuple, Row] = {}
    for row in rows:
        pair = tuple(row.get(name) for name in ("network", "other network", "plan", "lower plan"))
        if pair not in last or row["step"] > last[pair]["step"]:
            last[pair] = row
    return list(last.values())


def first_steps(rows: Iterable[Row]) -> list[Row]:
    """The first step of each plan."""
    return [row for row in rows if row["step"] == 1]


def _rate(row: Row) -> float:
    """The keep rate: the share of patches that the first step keeps."""
    return float(row["allowed"]) / row["patches"]


def ats_in_use(tables: Tables) -> Figure | None:
    """The share of the rows allowed that ATS uses after the last step, at keep rates above 0.6."""
    rows = _of(tables["spatial"], ("ats",))
    high = {(row["network"], row["plan"]) for row in first_steps(rows) if _rate(row) > 0.6}
    return mean_of(last_steps(row for row in rows if (row["network"], row["plan"]) in high), "in use")


def across_rates(methods: Sequence[str], column: str, pick: Callable = list) -> Callable[[Tables], Figure | None]:
    """The mean of a column over pairs of keep rates of the same method; IoA and IoU as `rescaled`."""
    scale = rescaled(column) if column in ("IoA", "IoU") else None
    return lambda tables: mean_of(pick(_of(tables["rates"], methods)), column, scale=scale)


def across_networks(methods: Sequence[str], column: str, pick: Callable = list) -> Callable[[Tables], Figure | None]:
    """The mean of a column over pairs of networks under the same plan; IoA and IoU as `rescaled`."""
    scale = rescaled(column) if column in ("IoA", "IoU") else None
    return lambda tables: mean_of(pick(_of(tables["networks"], methods)), column, scale=scale)


def between(
    first: Callable[[Tables], Figure | None], second: Callable[[Tables], Figure | None]
) -> Callable[[Tables], Figure | None]:
    """The difference of two figures."""
    return lambda tables: _difference(first(tables), second(tables))


def by_rate(above: bool) -> Callable[[Iterable[Row]], list[Row]]:
    """Selects rows with a keep rate above 0.3, or not above."""
    return lambda rows: [row for row in rows if "keep rate" in row and (row["keep rate"] > 0.3) == above]


def same_maps(tables: Tables) -> Figure | None:
    """The mean rank correlation of a plan's depth maps on two data sets."""
    rows = _of(tables["data_sets"], LEARNED)
    return _bootstrapped([row["Spearman"] for row in rows if math.isfinite(row["Spearman"])], np.mean)


def emd_as_others(tables: Tables) -> Figure | None:
    """The rank correlation of two distances of depth maps, EMD and JSD."""
    rows = [row for row in tables["data_sets"] if math.isfinite(row["EMD"] + row["JSD"])]
    return _correlation([row["EMD"] for row in rows], [row["JSD"] for row in rows])


def radial(tables: Tables) -> Figure | None:
    """The mean overlap with the l1, l2 and l-infinity patterns; 0 = by chance, 1 = the same."""
    rows = _of(tables["radial"], LEARNED)
    overlaps = (mean_of(rows, norm, scale=rescaled(norm)) for norm in NORMS)
    return _mean([overlap for overlap in overlaps if overlap is not None])


def proxy(anchor: str, metric: str, sign: float = 1) -> Callable[[Tables], Figure | None]:
    """The rank correlation with the difference in accuracy after the last block, averaged over networks."""

    def measure(tables: Tables) -> Figure | None:
        correlations = (
            _correlation([sign * row[metric] for row in rows], [row["accuracy difference"] for row in rows])
            for rows in _anchored(tables, anchor)
        )
        return _mean([correlation for correlation in correlations if correlation])

    return measure


def as_good(metric: str) -> Callable[[Tables], Figure | None]:
    """How much better a metric ranks the differences in accuracy than Procrustes does, with paired draws."""

    def measure(tables: Tables) -> Figure | None:
        advantages = []
        for rows in _anchored(tables, DENSE):
            columns = [[row[name] for row in rows] for name in (metric, "Procrustes", "accuracy difference")]
            values = np.array(columns, float)
            values = values[:, np.isfinite(values).all(0)]
            if values.shape[1] > 9 and np.ptp(values, axis=1).all():
                advantages.append(_bootstrapped(values.T, _advantage, draws=300))
        return _mean(advantages)

    return measure


def _advantage(rows: np.ndarray) -> float:
    metric, procrustes, difference = rows.T
    return spearman(metric, difference) - spearman(procrustes, difference)


def _anchored(tables: Tables, anchor: str) -> list[list[Row]]:
    rows = [row for row in tables["anchors"] if row["anchor method"] == anchor and "accuracy difference" in row]
    by_network: dict[str, list[Row]] = {}
    for row in rows:
        by_network.setdefault(row["network"], []).append(row)
    last = {network: max(row["layer"] for row in of_network) for network, of_network in by_network.items()}
    return [[row for row in by_network[network] if row["layer"] == layer] for network, layer in last.items()]


def pairs_of(tables: Tables, matches: Callable[[set[str]], bool]) -> Figure | None:
    """The mean IoU of pairs of methods that match; 0 = by chance, 1 = the same."""
    rows = [row for row in tables["methods"] if matches(_pair(row))]
    return mean_of(rows, "IoU", scale=rescaled("IoU"))


def groups_apart(
    table: str, first: Sequence[str], second: Sequence[str], value: Callable[[Rows], Figure | None]
) -> Callable[[Tables], Figure | None]:
    """The difference between groups of methods at equal numbers of patches in the same network."""
    key = lambda row: (row["network"], row["allowed"], row.get("step"))

    def measure(tables: Tables) -> Figure | None:
        groups = [_of(tables[table], methods) for methods in (first, second)]
        common = set(map(key, groups[0])) & set(map(key, groups[1]))
        return _difference(*(value([row for row in rows if key(row) in common]) for rows in groups))

    return measure


def spatial(column: str) -> Callable[[Rows], Figure | None]:
    """The mean of a column of `spatial` after the last step."""
    scale = rescaled(column) if column == "coherence" else None
    return lambda rows: mean_of(last_steps(rows), column, scale=scale)


def uneven(rows: Rows) -> Figure | None:
    """The mean unevenness of the patches' mean depths, see `spatial.unevenness`."""
    return _mean([[row[name] for name in ("unevenness", "unevenness low", "unevenness high")] for row in rows])


def _correlation(x: Sequence[float], y: Sequence[float]) -> Figure | None:
    pairs = np.array([x, y], float).T
    pairs = pairs[np.isfinite(pairs).all(1)]
    if len(pairs) < 5 or not np.ptp(pairs, axis=0).all():
        return None
    return _bootstrapped(pairs, lambda rows: spearman(*rows.T), draws=300)


def _bootstrapped(values: Any, call: Callable[[np.ndarray], Any], draws: int = _DRAWS) -> Figure | None:
    values = np.asarray(values, float)
    if len(values) < 2:
        return None
    rng, results = np.random.default_rng(0), []
    for _ in range(draws):
        draw = values[rng.integers(0, len(values), len(values))]
        # A draw in which all values are equal has no ranks.
        if draw.ndim == 1 or np.ptp(draw, axis=0).all():
            results.append(call(draw))
    low, high = np.percentile(results, (2.5, 97.5)) if results else (math.nan, math.nan)
    return Figure(float(call(values)), float(low), float(high))
