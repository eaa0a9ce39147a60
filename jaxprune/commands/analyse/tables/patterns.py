"""Comparisons of reduction patterns across keep rates, methods, radial patterns and networks: a row per pair and step.

"Which Tokens to Use?" (Haurum et al., 2023), Sec. 5.1 to 5.4. Each comparison covers all comparable members: kept
patches by IoA and IoU, clusters by homogeneity and NMI.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxprune.commands.analyse.tables.outcomes import name_of
from jaxprune.evaluate.collectors.observations import Observed
from jaxprune.evaluate.reduction_patterns import clusters_alike, overlaps
from jaxprune.measures import heat_maps
from jaxprune.measures.intervals import Spread
from jaxprune.measures.overlap import as_masks, chance_ioa, chance_iou, least_ioa, least_iou
from jaxprune.reduction.parts.radial_patterns import NORMS, disc, radii

Row = dict[str, Any]


def across_rates(observations: Sequence[Observed]) -> list[Row]:
    """Compares each method at one keep rate with itself at a lower one, in one network (Sec. 5.1).

    `bound` is the lowest possible IoA of sets of these sizes, and `chance` that of random sets.
    """
    rows = []
    for first, second in itertools.combinations(observations, 2):
        a, b = first.member, second.member
        same = (a.network, a.method, a.layers) == (b.network, b.method, b.layers)
        if not same or a.num_keep == b.num_keep or not a.layers:
            continue
        higher, lower = (first, second) if a.num_keep > b.num_keep else (second, first)
        start = {"network": a.network, "method": a.method, "plan": higher.member.plan, "lower plan": lower.member.plan}
        rows += [{**start, **row} for row in _steps(higher, lower)]
    return rows


def across_methods(observations: Sequence[Observed]) -> list[Row]:
    """Compares the methods of one network at one keep rate; `kept` is the plan's number of patches after each step."""
    rows = []
    for first, second in itertools.combinations(observations, 2):
        a, b = first.member, second.member
        if (a.network, a.layers, a.num_keep) == (b.network, b.layers, b.num_keep) and a.layers:
            kept = ", ".join(map(str, a.num_keep))
            start = {"network": a.network, "kept": kept, "plan": a.plan, "other plan": b.plan}
            start |= {"method": a.method, "other method": b.method}
            rows += [{**start, **row} for row in _steps(first, second)]
    return rows


def across_networks(observations: Sequence[Observed]) -> list[Row]:
    """Compares a plan in one network with the same plan in another network with the same grids (Sec. 5.2)."""
    rows = []
    for first, second in itertools.combinations(observations, 2):
        a, b = first.member, second.member
        same = (a.method, a.layers, a.num_keep, a.grids) == (b.method, b.layers, b.num_keep, b.grids)
        if same and a.layers and a.network != b.network:
            start: Row = {"plan": a.plan, "method": a.method, "network": a.network, "other network": b.network}
            start["keep rate"] = a.num_keep[0] / float(np.prod(a.grids[0]))
            rows += [{**start, **row} for row in _steps(second, first)]
    return rows


def against_radial(observations: Sequence[Observed]) -> list[Row]:
    """Compares kept patches with fixed radial patterns, the patches nearest the centre, by the same plan (Sec. 5.4).

    The values are IoU; `chance` is that of random sets of the same size.
    """
    rows = []
    for observed in (observation for observation in observations if observation.keeps):
        member = observed.member
        for step, (masks, grid, count) in enumerate(
            zip(observed.patterns.masks, member.grids, member.num_keep, strict=True)
        ):
            row: Row = {"network": member.network, "plan": member.plan, "method": member.method, "step": step + 1}
            for norm in NORMS:
                ids = disc(radii(norm, grid), count)
                pattern = as_masks(ids[None], masks.shape[1])
                row |= _columns(norm, overlaps(masks, pattern)["IoU"])
                row[f"{norm} chance"] = _chance(chance_iou, masks, pattern)
            rows.append({**row, "images": len(masks)})
    return rows


def depth_maps(observations: Sequence[Observed]) -> dict[tuple[str, str], np.ndarray]:
    """Returns {(network, plan): mean depth of each patch of the image, (rows, columns)} where patches are kept."""
    maps = {}
    for observed in (observation for observation in observations if observation.keeps):
        grids = set(observed.member.grids)
        if len(grids) == 1 and len(next(iter(grids))) == 2:
            (grid,) = grids
            maps[name_of(observed)] = observed.patterns.depths().mean(0).reshape(grid)
    return maps


def maps_alike(observations: Sequence[Observed], maps: Mapping[tuple[str, str], np.ndarray]) -> list[Row]:
    """Compares mean depths by the measures of saliency maps: methods at one keep rate, and one plan in two networks.

    The map of a plan that drops the same patches of every image only has the depths of its steps; it is treated like
    any other.

    Args:
      observations: all members.
      maps: what `depth_maps` returned for them.
    """
    rows = []
    for member, rival in itertools.combinations((observation.member for observation in observations), 2):
        names = (member.network, member.plan), (rival.network, rival.plan)
        comparable = (member.layers, member.num_keep) == (rival.layers, rival.num_keep)
        if not comparable or not all(name in maps for name in names):
            continue
        first, second = (maps[name] for name in names)
        same = member.network == rival.network or member.method == rival.method
        if same and first.shape == second.shape:
            columns = {"network": member.network, "plan": member.plan}
            columns |= {"other network": rival.network, "other plan": rival.plan}
            rows.append({**columns, **heat_maps.measures(first, second)})
    return rows


def across_data_sets(
    observations: Sequence[Observed], maps: Mapping[str, Mapping[tuple[str, str], np.ndarray]]
) -> list[Row]:
    """Compares the mean depths of each plan on one data set with those on another (Sec. 5.3, supplement H).

    Args:
      observations: all members, on any data set.
      maps: for each data set what `depth_maps` returned.
    """
    rows, methods = [], {name_of(observed): observed.member.method for observed in observations}
    for (data, maps_here), (data_there, maps_there) in itertools.combinations(maps.items(), 2):
        for network, plan in maps_here:
            if (network, plan) in maps_there:
                names = {"network": network, "plan": plan, "method": methods[network, plan]}
                names |= {"data": data, "other data": data_there}
                rows.append({**names, **heat_maps.measures(maps_here[network, plan], maps_there[network, plan])})
    return rows


def _steps(first: Observed, second: Observed) -> Iterator[Row]:
    """Yields the overlap of two plans, one row per step; the first has the higher keep rate, if they differ.

    For the homogeneity, the clusters of the second are the classes.
    """
    kept, clusters = first.keeps and second.keeps, first.clusters and second.clusters
    if not kept and not clusters:
        return
    for step, grid in enumerate(first.member.grids):
        if grid != second.member.grids[step]:
            continue
        row: Row = {"step": step + 1, "layer": first.member.layers[step]}
        if kept:
            row |= _overlap(first.patterns.masks[step], second.patterns.masks[step])
        if clusters:
            alike = clusters_alike(second.patterns.assign[step], first.patterns.assign[step])
            row |= _columns("homogeneity", alike["homogeneity"]) | _columns("NMI", alike["NMI"])
        yield {**row, "images": len(first.patterns.assign[step])}


def _overlap(larger: np.ndarray, smaller: np.ndarray) -> Row:
    overlap = overlaps(larger, smaller)
    return {
        **_columns("IoA", overlap["IoA"]),
        "IoA bound": _chance(least_ioa, larger, smaller),
        # An empty set shares nothing, by chance or not.
        "IoA chance": _chance(
            lambda count, count_smaller, patches: chance_ioa(count, patches) * (count_smaller > 0), larger, smaller
        ),
        **_columns("IoU", overlap["IoU"]),
        "IoU bound": _chance(least_iou, larger, smaller),
        "IoU chance": _chance(chance_iou, larger, smaller),
    }


def _columns(name: str, spread: Spread) -> Row:
    return {name: spread.mean, f"{name} std": spread.std}


def _chance(value: Any, larger: np.ndarray, smaller: np.ndarray) -> float:
    """The mean over images of a value of the two counts, which for ATS differ from image to image."""
    patches = larger.shape[1]
    counts, smaller_counts = np.broadcast_arrays(larger.sum(1), smaller.sum(1))
    pairs, times = np.unique(counts * (patches + 1) + smaller_counts, return_counts=True)
    values = [value(*divmod(int(pair), patches + 1), patches) for pair in pairs]
    return float(np.average(values, weights=times))
