"""Features and patterns as proxies for accuracy: comparisons of plans with an anchor.

"Which Tokens to Use?" (Haurum et al., 2023), Sec. 5.5, supplement J and K: every plan is compared with an anchor, and
the difference in accuracy is rank-correlated with the distance of features and the similarity of patterns.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxprune.commands.analyse.tables.outcomes import MemberPredictions, name_of
from jaxprune.evaluate.collectors.observations import Observed
from jaxprune.evaluate.reduction_patterns import clusters_alike, overlaps
from jaxprune.measures import alignment, rank_correlation
from jaxprune.measures.several_labels import Rankings
from jaxprune.reduction import DENSE

# Distances of features, 0 = equal; the last two need more images than features.
DISTANCES = ("Procrustes", "CKA", "PWCCA", "SVCCA")
SIMILARITIES = ("IoU", "NMI")
METRICS = (*DISTANCES, *SIMILARITIES)
_DECIMALS = 9
_PREPARED = 8  # members whose products of features are in memory, four matrices of d x d each


def anchor_rows(
    observations: Sequence[Observed],
    outcome: MemberPredictions | Rankings | None,
    anchors: Sequence[str],
    layers: Sequence[int],
) -> Iterator[dict[str, Any]]:
    """Yields a row for each anchor, other plan and layer: distances of features after it, similarity of patterns.

    A dense anchor is compared with every plan of its network, other anchors with the plans at their keep rate. The
    patterns of a layer are those of the last step up to it. `accuracy difference` is the anchor's minus the plan's.

    Args:
      observations: all members.
      outcome: what `outcomes.member_predictions` returned.
      anchors: methods, or `DENSE`.
      layers: the layers whose features were observed.
    """
    pairs = [
        (anchor, rival)
        for anchor in observations
        if anchor.member.method in anchors
        for rival in observations
        if _comparable(anchor, rival)
    ]
    distances = _feature_distances(pairs, layers)
    for anchor, rival in pairs:
        member = anchor.member
        names: dict[str, Any] = {"network": member.network, "anchor": member.plan, "plan": rival.member.plan}
        if outcome is not None:
            anchor_score, rival_score = (outcome.score(name_of(observed)) for observed in (anchor, rival))
            names["accuracy difference"] = anchor_score - rival_score
        for layer in layers:
            if (name_of(anchor), name_of(rival), layer) in distances:
                values = distances[name_of(anchor), name_of(rival), layer] | _pattern_similarity(anchor, rival, layer)
                row = {**names, "anchor method": member.method, "layer": layer, **values}
                yield {**row, "images": len(anchor["index"])}


def correlations(rows: Sequence[dict[str, Any]], *, draws: int = 1000) -> list[dict[str, Any]]:
    """Returns the rank correlation of each metric with the differences in accuracy, by network, anchor and layer.

    For a good proxy it is strongly positive for a distance, and strongly negative for a similarity.

    Args:
      rows: what `anchor_rows` yielded.
      draws: number of bootstrap draws.
    """
    result = []
    groups = dict.fromkeys((row["network"], row["anchor method"], row["layer"]) for row in rows)
    for network, anchor, layer in groups:
        key = (network, anchor, layer)
        group = [row for row in rows if (row["network"], row["anchor method"], row["layer"]) == key]
        for metric in METRICS:
            pairs = np.array([[row.get("accuracy difference", np.nan), row[metric]] for row in group], float)
            rho, tau = (call(*pairs.T, draws=draws) for call in (rank_correlation.spearman, rank_correlation.kendall))
            if not np.isnan(rho.value):
                row = {"network": network, "anchor": anchor, "layer": layer, "metric": metric}
                result.append({**row, **_columns("Spearman", rho), **_columns("Kendall", tau), "pairs": rho.count})
    return result


def _comparable(anchor: Observed, rival: Observed) -> bool:
    a, b = anchor.member, rival.member
    if a.network != b.network or a.plan == b.plan:
        return False
    if a.method == DENSE:
        return True
    return b.method != DENSE and (a.layers, a.num_keep) == (b.layers, b.num_keep)


def _feature_distances(
    pairs: Sequence[tuple[Observed, Observed]], layers: Sequence[int]
) -> dict[tuple, dict[str, float]]:
    """The distances of features of all pairs and layers.

    Features are read in chunks of images, and what comparisons need of a member besides is in memory for a few members
    at a time, whatever their number.
    """
    members = {name_of(observed): observed for pair in pairs for observed in pair}

    @functools.lru_cache(maxsize=_PREPARED)
    def prepared(name: tuple[str, str], field: str) -> alignment.Features:
        return alignment.features(members[name].rows(field))

    # Plans at one keep rate one after the other, because an anchor is compared with those at its rate.
    rate = lambda pair: (pair[1].member.network, pair[1].member.layers, pair[1].member.num_keep, name_of(pair[1]))
    ordered, distances = sorted(pairs, key=rate), {}
    for layer in layers:
        field = f"layer_{layer}"
        for anchor, rival in ordered:
            if field not in anchor or field not in rival:
                continue
            names = name_of(anchor), name_of(rival)
            by_metric = alignment.distances(*(prepared(name, field) for name in names))
            # Rounded, so that rounding errors of equal features do not affect ranks.
            rounded = lambda value: max(0.0, round(value, _DECIMALS)) if value == value else value
            distances[*names, layer] = {metric: rounded(value) for metric, value in by_metric.items()}
    return distances


def _pattern_similarity(anchor: Observed, rival: Observed, layer: int) -> dict[str, float]:
    similarities: dict[str, float] = {name: float("nan") for name in SIMILARITIES}
    steps = [step for step, place in enumerate(anchor.member.layers) if place <= layer]
    if not steps or anchor.member.layers != rival.member.layers or anchor.member.grids != rival.member.grids:
        return similarities
    first, second, step = anchor.patterns, rival.patterns, steps[-1]
    if anchor.keeps and rival.keeps:
        similarities["IoU"] = overlaps(first.masks[step], second.masks[step])["IoU"].mean
    if anchor.clusters and rival.clusters:
        similarities["NMI"] = clusters_alike(first.assign[step], second.assign[step])["NMI"].mean
    return similarities


def _columns(name: str, rank: rank_correlation.RankCorrelation) -> dict[str, float]:
    return {name: rank.value, f"{name} low": rank.low, f"{name} high": rank.high, f"{name} p": rank.p_value}
