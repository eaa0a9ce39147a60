"""The findings of "Which Tokens to Use?", and whether they hold for the networks and images of an analysis.

Haurum et al., 2023, supplement D to M: one row per claim, with the figure measured here, its 95 % interval, and the
bound that it is compared with. Every figure is computed from the tables of the analysis.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxprune.analysis.heat_maps import spearman
from jaxprune.bench.contestants import DENSE

Row = Mapping[str, Any]
Rows = Sequence[Row]
Tables = Mapping[str, Rows]

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decidable"

PRUNING = ("topk", "evit", "dynamicvit")  # methods that keep a fixed number of patches
CENTRES = ("kmedoids", "dpc_knn")
HARD, SOFT = ("tome", *CENTRES), ("sit", "patch_merger", "sinkhorn")
_LEARNED = (*PRUNING, "ats", *CENTRES)
_Z, _DRAWS = 1.96, 1000


class Figure(NamedTuple):
    """A number with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def minus(self, other: "Figure") -> "Figure":
        """The difference; its interval is an upper bound, valid for any correlation of the two."""
        half = (self.high - self.low + other.high - other.low) / 2
        return Figure(self.value - other.value, self.value - other.value - half, self.value - other.value + half)


class Claim(NamedTuple):
    """One finding of the paper.

    Attributes:
      section: section of the supplement.
      text: the finding.
      figure: the measured quantity.
      measure: tables -> the figure; None if its inputs are missing.
      bound: the bound that the figure is compared with.
      above: whether the claim is that the figure is above the bound.
      needs: what the analysis must contain.
    """

    section: str
    text: str
    figure: str
    measure: Callable[[Tables], Figure | None]
    bound: float
    above: bool
    needs: str


def judge(tables: Tables) -> list[dict[str, Any]]:
    """Returns one row per claim: its figure with an interval, the bound, and the verdict.

    A claim holds if the whole interval is on its side of the bound, and fails if the whole interval is on the other.

    Args:
      tables: rows by name: `rates`, `methods`, `radial`, `networks`, `data_sets`, `anchors`, `spatial`, `depths`.
    """
    rows = []
    for claim in CLAIMS:
        found = claim.measure(tables)
        # A network that drops nothing, or constant maps, give no figure.
        if found is None or not math.isfinite(found.value):
            value, low, high, verdict = math.nan, math.nan, math.nan, f"{OPEN}: needs {claim.needs}"
        else:
            value, low, high = found
            verdict = verdict_of(found, claim.bound, above=claim.above)
        rows.append(
            {
                "section": claim.section,
                "claim": claim.text,
                "figure": claim.figure,
                "here": value,
                "here low": low,
                "here high": high,
                "holds if": f"{'above' if claim.above else 'below'} {claim.bound:g}",
                "verdict": verdict,
            }
        )
    return rows


def verdict_of(found: Figure, bound: float, *, above: bool) -> str:
    """Returns whether an interval is above or below a bound.

    >>> verdict_of(Figure(0.4, 0.3, 0.5), 0, above=True), verdict_of(Figure(0.1, -0.1, 0.3), 0, above=True)
    ('holds', 'not decidable')
    """
    if math.isnan(found.low) or math.isnan(found.high) or found.low <= bound <= found.high:
        return OPEN
    return HOLDS if (found.low > bound) == above else FAILS


def mean_of(rows: Iterable[Row], column: str, *, scale: Callable[[Row, float], float] | None = None) -> Figure | None:
    """Returns the mean of a column over rows, with the interval over images.

    Rows share the same images: the interval assumes fully correlated rows, and is conservative.

    Args:
      rows: rows with `column`, its deviation between images and `images`; others are ignored.
      scale: (row, value) -> value, linear in the value.
    """
    found = []
    for row in rows:
        if column not in row or not math.isfinite(row[column]):
            continue
        half = _Z * row.get(f"{column} std", 0.0) / math.sqrt(row["images"])
        ends = (row[column], row[column] - half, row[column] + half)
        found.append([scale(row, value) for value in ends] if scale else ends)
    return Figure(*map(float, np.mean(found, axis=0))) if found else None


def _difference(first: Figure | None, second: Figure | None) -> Figure | None:
    return None if first is None or second is None else first.minus(second)


def _over_chance(column: str) -> Callable[[Row, float], float]:
    """Rescales a value to 0 = chance, 1 = all."""
    chance = f"{column} chance"
    return lambda row, value: (value - row[chance]) / max(1 - row[chance], 1e-9)


def _of(rows: Rows, methods: Sequence[str], column: str = "method") -> list[Row]:
    return [row for row in rows if row.get(column) in methods]


def _pair(row: Row) -> set[str]:
    return {row["method"], row["other method"]}


def _last(rows: Iterable[Row]) -> list[Row]:
    """The last step of each plan, or pair of plans: some have more steps than others."""
    last: dict[tuple, Row] = {}
    for row in rows:
        of = tuple(row.get(name) for name in ("network", "other network", "plan", "lower plan"))
        if of not in last or row["step"] > last[of]["step"]:
            last[of] = row
    return list(last.values())


def _first(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["step"] == 1]


def _rate(row: Row) -> float:
    """The keep rate: the share of patches that the first step keeps."""
    return float(row["allowed"]) / row["patches"]


def _ats_in_use(tables: Tables) -> Figure | None:
    rows = [row for row in _of(tables["spatial"], ("ats",)) if row["step"] == 1]
    high = {(row["network"], row["plan"]) for row in rows if _rate(row) > 0.6}
    return mean_of(_last(r for r in _of(tables["spatial"], ("ats",)) if (r["network"], r["plan"]) in high), "in use")


def _across_rates(methods: Sequence[str], column: str, pick: Callable = list) -> Callable[[Tables], Figure | None]:
    scale = _over_chance(column) if column in ("IoA", "IoU") else None
    return lambda tables: mean_of(pick(_of(tables["rates"], methods)), column, scale=scale)


def _across_networks(methods: Sequence[str], column: str, pick: Callable = list) -> Callable[[Tables], Figure | None]:
    scale = _over_chance(column) if column in ("IoA", "IoU") else None
    own = lambda tables: [row for row in tables["networks"] if row["method"] in methods]
    return lambda tables: mean_of(pick(own(tables)), column, scale=scale)


def _between(
    first: Callable[[Tables], Figure | None], second: Callable[[Tables], Figure | None]
) -> Callable[[Tables], Figure | None]:
    return lambda tables: _difference(first(tables), second(tables))


def _by_rate(above: bool) -> Callable[[Iterable[Row]], list[Row]]:
    """Selects rows with a keep rate above 0.3, or not above."""
    return lambda rows: [row for row in rows if "keep rate" in row and (row["keep rate"] > 0.3) == above]


def _maps_alike(tables: Tables) -> Figure | None:
    rows = [row for row in tables["data_sets"] if row["method"] in _LEARNED]
    return _bootstrapped([row["Spearman"] for row in rows if math.isfinite(row["Spearman"])], np.mean)


def _emd_as_others(tables: Tables) -> Figure | None:
    rows = [row for row in tables["data_sets"] if math.isfinite(row["EMD"] + row["JSD"])]
    return _correlation([row["EMD"] for row in rows], [row["JSD"] for row in rows])


def _radial(tables: Tables) -> Figure | None:
    rows = [row for row in tables["radial"] if row["method"] in _LEARNED]
    found = [mean_of(rows, norm, scale=_over_chance(norm)) for norm in ("l1", "l2", "linf")]
    whole = [each for each in found if each is not None]
    return Figure(*map(float, np.mean(whole, axis=0))) if whole else None


def _proxy(anchor: str, metric: str, sign: float = 1) -> Callable[[Tables], Figure | None]:
    """The rank correlation with the difference in accuracy after the last block, averaged over networks."""

    def measure(tables: Tables) -> Figure | None:
        found = []
        for own in _anchored(tables, anchor):
            both = _correlation([sign * row[metric] for row in own], [row["accuracy difference"] for row in own])
            found += [both] if both else []
        return Figure(*map(float, np.mean(found, axis=0))) if found else None

    return measure


def _as_good(metric: str) -> Callable[[Tables], Figure | None]:
    """How much better a metric ranks the differences in accuracy than Procrustes does, with paired draws."""

    def measure(tables: Tables) -> Figure | None:
        found = []
        for own in _anchored(tables, DENSE):
            columns = [[row[name] for row in own] for name in (metric, "Procrustes", "accuracy difference")]
            values = np.array(columns, float)
            values = values[:, np.isfinite(values).all(0)]
            if values.shape[1] > 9 and np.ptp(values, axis=1).all():
                found.append(_bootstrapped(values.T, _better, draws=300))
        return Figure(*map(float, np.mean(found, axis=0))) if found else None

    return measure


def _better(rows: np.ndarray) -> float:
    own, theirs, wanted = rows.T
    return spearman(own, wanted) - spearman(theirs, wanted)


def _anchored(tables: Tables, anchor: str) -> list[list[Row]]:
    rows = [row for row in tables["anchors"] if row["anchor method"] == anchor and "accuracy difference" in row]
    networks = dict.fromkeys(row["network"] for row in rows)
    found = []
    for network in networks:
        own = [row for row in rows if row["network"] == network]
        last = max(row["layer"] for row in own)
        found.append([row for row in own if row["layer"] == last])
    return found


def _pairs_of(tables: Tables, wanted: Callable[[set[str]], bool]) -> Figure | None:
    rows = [row for row in tables["methods"] if wanted(_pair(row))]
    return mean_of(rows, "IoU", scale=_over_chance("IoU"))


def _apart(
    table: str, first: Sequence[str], second: Sequence[str], value: Callable[[Rows], Figure | None]
) -> Callable[[Tables], Figure | None]:
    """The difference between groups of methods at equal numbers of patches in the same network."""
    key = lambda row: (row["network"], row["allowed"], row.get("step"))

    def measure(tables: Tables) -> Figure | None:
        both = [_of(tables[table], methods) for methods in (first, second)]
        common = set(map(key, both[0])) & set(map(key, both[1]))
        return _difference(*(value([row for row in rows if key(row) in common]) for rows in both))

    return measure


def _spatial(column: str) -> Callable[[Rows], Figure | None]:
    scale = _over_chance(column) if column == "coherence" else None
    return lambda rows: mean_of(_last(rows), column, scale=scale)


def _uneven(rows: Rows) -> Figure | None:
    ends = [[row[name] for name in ("unevenness", "unevenness low", "unevenness high")] for row in rows]
    return Figure(*map(float, np.mean(ends, axis=0))) if ends else None


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
    rng, found = np.random.default_rng(0), []
    for _ in range(draws):
        some = values[rng.integers(0, len(values), len(values))]
        # A draw in which all values are equal has no ranks.
        if some.ndim == 1 or np.ptp(some, axis=0).all():
            found.append(call(some))
    low, high = np.percentile(found, (2.5, 97.5)) if found else (math.nan, math.nan)
    return Figure(float(call(values)), float(low), float(high))


_TOPK_EVIT = {"topk", "evit"}
_CHANCE = "0 = by chance, 1 = the same"

CLAIMS = (
    Claim(
        "D",
        "At high keep rates ATS uses far fewer rows in the last step than it may.",
        "rows in use after the last step, of those allowed, keep rates above .6",
        _ats_in_use,
        0.75,
        False,
        "ats at a keep rate above .6",
    ),
    Claim(
        "G",
        "What a pruning method keeps is consistent across keep rates.",
        f"IoA of topk, evit and dynamicvit ({_CHANCE})",
        _across_rates(PRUNING, "IoA"),
        0.5,
        True,
        "topk, evit or dynamicvit at two keep rates",
    ),
    Claim(
        "G",
        "ATS and the centres of K-Medoids and DPC-KNN are less consistent than that.",
        "IoA of the former minus that of the latter",
        _between(_across_rates(PRUNING, "IoA"), _across_rates(("ats", *CENTRES), "IoA")),
        0,
        True,
        "a pruning method, and ats, kmedoids or dpc_knn, at two keep rates",
    ),
    Claim(
        "G",
        "Clusters of hard merging are consistent across keep rates, more than those of soft merging.",
        "homogeneity of tome, kmedoids and dpc_knn minus that of sit, patch_merger and sinkhorn",
        _between(_across_rates(HARD, "homogeneity"), _across_rates(SOFT, "homogeneity")),
        0,
        True,
        "hard and soft merging at two keep rates",
    ),
    Claim(
        "G",
        "Clusters of SiT and PatchMerger are consistent in the first step, and no longer in the last.",
        "homogeneity of the first step minus that of the last",
        _between(
            _across_rates(("sit", "patch_merger"), "homogeneity", _first),
            _across_rates(("sit", "patch_merger"), "homogeneity", _last),
        ),
        0,
        True,
        "sit or patch_merger at two keep rates",
    ),
    Claim(
        "G",
        "What pruning keeps is not consistent across backbones.",
        f"IoU of topk, evit, dynamicvit and ats in two networks ({_CHANCE})",
        _across_networks((*PRUNING, "ats"), "IoU"),
        0.5,
        False,
        "two networks of one grid",
    ),
    Claim(
        "G",
        "Clusters of hard merging are consistent across backbones at keep rates above .25.",
        "NMI of tome, kmedoids and dpc_knn in two networks",
        _across_networks(HARD, "NMI", _by_rate(True)),
        0.5,
        True,
        "two networks of one grid under hard merging",
    ),
    Claim(
        "G",
        "At .25 they are much less so.",
        "NMI above .25 minus that at .25",
        _between(_across_networks(HARD, "NMI", _by_rate(True)), _across_networks(HARD, "NMI", _by_rate(False))),
        0,
        True,
        "two networks of one grid, and a keep rate up to .3",
    ),
    Claim(
        "G",
        "Clusters of SiT and Sinkhorn are not consistent across backbones.",
        "NMI of hard merging minus that of sit and sinkhorn",
        _between(_across_networks(HARD, "NMI"), _across_networks(("sit", "sinkhorn"), "NMI")),
        0,
        True,
        "two networks of one grid under hard and soft merging",
    ),
    Claim(
        "H",
        "Maps of the mean depth of patches are much alike on different data.",
        "Spearman of the maps of a method on two data sets; interval over plans",
        _maps_alike,
        0.5,
        True,
        "two data sets (config.more_data)",
    ),
    Claim(
        "H",
        "The earth mover's distance says what the other measures of maps do.",
        "Spearman of EMD and JSD over pairs of maps",
        _emd_as_others,
        0.5,
        True,
        "five pairs of maps on two data sets",
    ),
    Claim(
        "I",
        "Learned patterns have little in common with fixed radial ones.",
        f"IoU with the l1, l2 and linf patterns ({_CHANCE})",
        _radial,
        0.5,
        False,
        "a method that keeps patches",
    ),
    Claim(
        "J",
        "CKA stands for accuracy as well as Procrustes does.",
        "their rank correlations with the difference in accuracy: CKA minus Procrustes",
        _as_good("CKA"),
        -0.1,
        True,
        "ten plans beside the dense network, and classes",
    ),
    Claim(
        "J",
        "PWCCA stands for accuracy as well as Procrustes does.",
        "PWCCA minus Procrustes, likewise",
        _as_good("PWCCA"),
        -0.1,
        True,
        "ten plans beside the dense network, classes, and more images than features",
    ),
    Claim(
        "K",
        "The Procrustes distance of features is a moderate to strong proxy of accuracy.",
        "rank correlation with the difference from the dense network; interval over plans",
        _proxy(DENSE, "Procrustes"),
        0.4,
        True,
        "five plans beside the dense network, and classes",
    ),
    Claim(
        "K",
        "IoU with Top-K is one too.",
        "rank correlation of 1 - IoU with the difference from topk",
        _proxy("topk", "IoU", -1),
        0.4,
        True,
        "five plans beside topk, and classes",
    ),
    Claim(
        "K",
        "NMI with K-Medoids is one too.",
        "rank correlation of 1 - NMI with the difference from kmedoids",
        _proxy("kmedoids", "NMI", -1),
        0.4,
        True,
        "five plans beside kmedoids, and classes",
    ),
    Claim(
        "L",
        "Top-K and EViT keep much the same patches.",
        "their IoU minus that of either with ats and dynamicvit",
        _between(
            lambda tables: _pairs_of(tables, lambda pair: pair == _TOPK_EVIT),
            lambda tables: _pairs_of(
                tables, lambda pair: bool(pair & _TOPK_EVIT) and bool(pair & {"ats", "dynamicvit"})
            ),
        ),
        0,
        True,
        "topk, evit, and ats or dynamicvit at one keep rate",
    ),
    Claim(
        "L",
        "DynamicViT keeps patches nearer to the centre than Top-K and EViT do.",
        "distance from the centre, in the mean of all patches: theirs minus its",
        _apart("spatial", ("topk", "evit"), ("dynamicvit",), _spatial("centre distance")),
        0,
        True,
        "dynamicvit, and topk or evit",
    ),
    Claim(
        "L",
        "Patches get less deep under ATS than under Top-K and EViT.",
        "mean depth in blocks: theirs minus its",
        _apart("depths", ("topk", "evit"), ("ats",), lambda rows: mean_of(rows, "depth")),
        0,
        True,
        "ats, and topk or evit",
    ),
    Claim(
        "L",
        "The depth of K-Medoids' and DPC-KNN's centres is more even over the image than that of pruning.",
        "standard deviation of the mean depth over places, in blocks: of pruning minus theirs",
        _apart("depths", PRUNING, CENTRES, _uneven),
        0,
        True,
        "a pruning method, and kmedoids or dpc_knn",
    ),
    Claim(
        "M",
        "Clusters of soft merging collapse, those of hard merging do not.",
        "clusters in use after the last step, of those allowed: hard minus soft",
        _apart("spatial", HARD, SOFT, _spatial("in use")),
        0,
        True,
        "hard and soft merging",
    ),
    Claim(
        "M",
        "ATS keeps patches all over the image, Top-K, EViT and DynamicViT regions.",
        "share of the neighbours of kept patches that are kept (0 = by chance): theirs minus its",
        _apart("spatial", PRUNING, ("ats",), _spatial("coherence")),
        0,
        True,
        "ats, and a pruning method",
    ),
    Claim(
        "M",
        "The centres of K-Medoids and DPC-KNN are not the distinctive patches, which Top-K keeps.",
        f"IoU of their centres with what topk keeps ({_CHANCE})",
        lambda tables: _pairs_of(tables, lambda pair: "topk" in pair and bool(pair & set(CENTRES))),
        0.5,
        False,
        "topk, and kmedoids or dpc_knn, at one keep rate",
    ),
)
