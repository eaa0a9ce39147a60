"""Comparisons of reduction patterns across keep rates, methods, radial patterns and networks: a row per pair and step.

"Which Tokens to Use?" (Haurum et al., 2023), Sec. 5.1 to 5.4. Each comparison covers all comparable members: kept
patches by IoA and IoU, clusters by homogeneity and NMI.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxprune.evaluate.collectors.observations import Observed
from jaxprune.evaluate.reduction_patterns import clusters_alike, overlaps
from jaxprune.measures import heat_maps
from jaxprune.measures.intervals import Spread
from jaxprune.measures.overlap import as_masks, chance_ioa, chance_iou, least_ioa, least_iou
from jaxprune.reduction.parts.radial_patterns import NORMS, disc, radii

Row = dict[str, Any]


def across_rates(found: Sequence[Observed]) -> list[Row]:
    """Compares each method at one keep rate with itself at a lower one, in one network (Sec. 5.1).

    `bound` is the lowest possible IoA of sets of these sizes, and `chance` that of random sets.
    """
    rows = []
    for one, other in itertools.combinations(found, 2):
        a, b = one.member, other.member
        if (a.network, a.method, a.layers) != (b.network, b.method, b.layers) or a.wanted == b.wanted or not a.layers:
            continue
        more, fewer = (one, other) if a.wanted > b.wanted else (other, one)
        start = {"network": a.network, "method": a.method, "plan": more.member.plan, "lower plan": fewer.member.plan}
        rows += [{**start, **row} for row in _steps(more, fewer)]
    return rows


def across_methods(found: Sequence[Observed]) -> list[Row]:
    """Compares the methods of one network at one keep rate; `kept` is the plan's number of patches after each step."""
    rows = []
    for one, other in itertools.combinations(found, 2):
        a, b = one.member, other.member
        if (a.network, a.layers, a.wanted) == (b.network, b.layers, b.wanted) and a.layers:
            kept = ", ".join(map(str, a.wanted))
            start = {"network": a.network, "kept": kept, "plan": a.plan, "other plan": b.plan}
            start |= {"method": a.method, "other method": b.method}
            rows += [{**start, **row} for row in _steps(one, other)]
    return rows


def across_networks(found: Sequence[Observed]) -> list[Row]:
    """Compares a plan in one network with the same plan in another network with the same grids (Sec. 5.2)."""
    rows = []
    for one, other in itertools.combinations(found, 2):
        a, b = one.member, other.member
        same = (a.method, a.layers, a.wanted, a.grids) == (b.method, b.layers, b.wanted, b.grids)
        if same and a.layers and a.network != b.network:
            start: Row = {"plan": a.plan, "method": a.method, "network": a.network, "other network": b.network}
            start["keep rate"] = a.wanted[0] / float(np.prod(a.grids[0]))
            rows += [{**start, **row} for row in _steps(other, one)]
    return rows


def against_radial(found: Sequence[Observed]) -> list[Row]:
    """Compares kept patches with fixed radial patterns, the patches nearest the centre, by the same plan (Sec. 5.4).

    The values are IoU; `chance` is that of random sets of the same size.
    """
    rows = []
    for observed in (each for each in found if each.keeps):
        member = observed.member
        for step, (masks, grid, count) in enumerate(
            zip(observed.patterns.masks, member.grids, member.wanted, strict=True)
        ):
            row: Row = {"network": member.network, "plan": member.plan, "method": member.method, "step": step + 1}
            for norm in NORMS:
                ids = disc(radii(norm, grid), count)
                pattern = as_masks(ids[None], masks.shape[1])
                row |= _columns(norm, overlaps(masks, pattern)["IoU"])
                row[f"{norm} chance"] = _chance(chance_iou, masks, pattern)
            rows.append({**row, "images": len(masks)})
    return rows


def depth_maps(found: Sequence[Observed]) -> dict[tuple[str, str], np.ndarray]:
    """Returns {(network, plan): mean depth of each patch of the image, (rows, columns)} where patches are kept."""
    maps = {}
    for observed in (each for each in found if each.keeps):
        grids = set(observed.member.grids)
        if len(grids) == 1 and len(next(iter(grids))) == 2:
            (grid,) = grids
            maps[observed.member.network, observed.member.plan] = observed.patterns.depths().mean(0).reshape(grid)
    return maps


def maps_alike(found: Sequence[Observed], maps: Mapping[tuple[str, str], np.ndarray]) -> list[Row]:
    """Compares mean depths by the measures of saliency maps: methods at one keep rate, and one plan in two networks.

    The map of a plan that drops the same patches of every image only has the depths of its steps; it is treated like
    any other.

    Args:
      found: all members.
      maps: what `depth_maps` returned for them.
    """
    rows = []
    for one, other in itertools.combinations((each.member for each in found), 2):
        names = (one.network, one.plan), (other.network, other.plan)
        if not all(name in maps for name in names) or (one.layers, one.wanted) != (other.layers, other.wanted):
            continue
        first, second = (maps[name] for name in names)
        same = one.network == other.network or one.method == other.method
        if same and first.shape == second.shape:
            columns = {"network": one.network, "plan": one.plan}
            columns |= {"other network": other.network, "other plan": other.plan}
            rows.append({**columns, **heat_maps.measures(first, second)})
    return rows


def across_data_sets(found: Sequence[Observed], maps: Mapping[str, Mapping[tuple[str, str], np.ndarray]]) -> list[Row]:
    """Compares the mean depths of each plan on one data set with those on another (Sec. 5.3, supplement H).

    Args:
      found: all members, on any data set.
      maps: for each data set what `depth_maps` returned.
    """
    rows, methods = [], {(each.member.network, each.member.plan): each.member.method for each in found}
    for (data, own), (other, others) in itertools.combinations(maps.items(), 2):
        for network, plan in own:
            if (network, plan) in others:
                names = {
                    "network": network,
                    "plan": plan,
                    "method": methods[network, plan],
                    "data": data,
                    "other data": other,
                }
                rows.append({**names, **heat_maps.measures(own[network, plan], others[network, plan])})
    return rows


def _steps(one: Observed, other: Observed) -> Iterator[Row]:
    """Yields the overlap of two plans, one row per step; the first has the higher keep rate, if they differ.

    For the homogeneity, the clusters of the second are the classes.
    """
    kept, clusters = one.keeps and other.keeps, one.clusters and other.clusters
    if not kept and not clusters:
        return
    for step, grid in enumerate(one.member.grids):
        if grid != other.member.grids[step]:
            continue
        row: Row = {"step": step + 1, "layer": one.member.layers[step]}
        if kept:
            row |= _overlap(one.patterns.masks[step], other.patterns.masks[step])
        if clusters:
            alike = clusters_alike(other.patterns.assign[step], one.patterns.assign[step])
            row |= _columns("homogeneity", alike["homogeneity"]) | _columns("NMI", alike["NMI"])
        yield {**row, "images": len(one.patterns.assign[step])}


def _overlap(more: np.ndarray, fewer: np.ndarray) -> Row:
    found = overlaps(more, fewer)
    return {
        **_columns("IoA", found["IoA"]),
        "IoA bound": _chance(least_ioa, more, fewer),
        # An empty set shares nothing, by chance or not.
        "IoA chance": _chance(lambda count, less, patches: chance_ioa(count, patches) * (less > 0), more, fewer),
        **_columns("IoU", found["IoU"]),
        "IoU bound": _chance(least_iou, more, fewer),
        "IoU chance": _chance(chance_iou, more, fewer),
    }


def _columns(name: str, found: Spread) -> Row:
    return {name: found.mean, f"{name} std": found.std}


def _chance(value: Any, more: np.ndarray, fewer: np.ndarray) -> float:
    """The mean over images of a value of the two counts, which for ATS differ from image to image."""
    patches = more.shape[1]
    counts, others = np.broadcast_arrays(more.sum(1), fewer.sum(1))
    pairs, times = np.unique(counts * (patches + 1) + others, return_counts=True)
    values = [value(*divmod(int(pair), patches + 1), patches) for pair in pairs]
    return float(np.average(values, weights=times))
