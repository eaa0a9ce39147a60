"""Features and patterns as proxies for accuracy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxprune.commands.analyse.page.parts import Rows, add_table, grouped
from jaxprune.commands.analyse.tables.proxies import DISTANCES, SIMILARITIES
from jaxprune.report import Section, plots, spread

_SHOWN = 5  # pairs: fewer are not drawn
_LAYERS = 4  # drawn at most
_DRAWN = ("Procrustes", "CKA", "PWCCA", *SIMILARITIES)
_ENOUGH = 10  # pairs: a bootstrap interval of fewer is too narrow


def describe(section: Section, anchors: Rows, proxies: Rows, several_networks: bool, measure: str = "accuracy") -> None:
    """Adds distances from anchors, and their rank correlation with the plans' differences in accuracy."""
    rows = [row for row in anchors if "accuracy difference" in row]
    correlated = {(row["network"], row["layer"]) for row in proxies}
    for (network, method), anchor_rows in grouped(rows, ("network", "anchor method")).items():
        layers = _some(sorted({row["layer"] for row in anchor_rows if (network, row["layer"]) in correlated}))
        panels, tips = _panels(anchor_rows, layers)
        if not panels:
            continue
        subject = f"{measure[0].upper()}{measure[1:]} of {method}{f' in {network}' if several_networks else ''}"
        section.figure(
            plots.scatter_grid(panels, f"{measure} difference", tips=tips),
            f"{_correlations(proxies, network, method, layers[-1], list(panels))}{subject} minus that of each plan, "
            f"against {_against(list(panels))}; a point is a plan, n = {anchor_rows[0]['images']} images.",
        )
    if proxies:
        add_table(
            section,
            spread.as_ranges(proxies),
            "Rank correlations between a metric and the difference in accuracy from the anchor, one pair per plan; in "
            "brackets the 95 % interval (bootstrap over pairs), `p`: p-value of no correlation. A good proxy is near 1 "
            f"for distances ({', '.join(DISTANCES)}) and near -1 for IoU and NMI. Intervals of fewer than {_ENOUGH} "
            "pairs are too narrow.",
            ".2f",
        )
    deepest = {
        network: max(row["layer"] for row in anchor_rows)
        for (network,), anchor_rows in grouped(anchors, ("network",)).items()
    }
    add_table(
        section,
        [
            {name: value for name, value in row.items() if name != "anchor method"}
            for row in anchors
            if row["layer"] == deepest[row["network"]]
        ],
        "Every plan against its anchors: distances of features after the last block (0 = equal; blocks count from 0), "
        "IoU and NMI of patterns; other blocks are in `anchors.csv`. PWCCA and SVCCA need more images than features. "
        f"n = {anchors[0]['images']} images.",
    )


def _panels(rows: Rows, layers: Sequence[int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The points of each metric, with a series for each layer, and the names of their plans."""
    panels, tips = {}, {}
    for metric in _DRAWN:
        of_layer = {layer: [row for row in rows if row["layer"] == layer] for layer in layers}
        series = {
            f"block {layer}": [row for row in layer_rows if np.isfinite(row[metric])]
            for layer, layer_rows in of_layer.items()
        }
        series = {name: layer_rows for name, layer_rows in series.items() if len(layer_rows) >= _SHOWN}
        if series:
            column = lambda layer_rows, key: [row[key] for row in layer_rows]
            panels[metric] = {
                name: (column(layer_rows, metric), column(layer_rows, "accuracy difference"))
                for name, layer_rows in series.items()
            }
            tips[metric] = {
                name: [f"{row['plan']}, {name}" for row in layer_rows] for name, layer_rows in series.items()
            }
    return panels, tips


def _against(metrics: Sequence[str]) -> str:
    """What the panels show, in words."""
    parts = []
    if any(metric in DISTANCES for metric in metrics):
        parts.append("distances of features (0 = equal)")
    if any(metric in SIMILARITIES for metric in metrics):
        parts.append("similarities of patterns, after the last step up to the block")
    return " and ".join(parts)


def _some(layers: Sequence[int]) -> list[int]:
    """At most `_LAYERS` of the layers, evenly spaced, the last among them."""
    if len(layers) <= _LAYERS:
        return list(layers)
    places = np.linspace(0, len(layers) - 1, _LAYERS).round().astype(int)
    return [layers[place] for place in places]


def _correlations(rows: Rows, network: str, method: str, layer: int, metrics: Sequence[str]) -> str:
    """Spearman's correlations after a layer, in a sentence; empty if there are none."""
    phrases = []
    for row in rows:
        if (row["network"], row["anchor"], row["layer"]) == (network, method, layer) and row["metric"] in metrics:
            low, high = row["Spearman low"], row["Spearman high"]
            unsure = ", too few to tell" if row["pairs"] < _ENOUGH else ", not significant" if low <= 0 <= high else ""
            phrases.append(
                f"{row['Spearman']:.2f} [{low:.2f}, {high:.2f}] for {row['metric']} ({row['pairs']} plans{unsure})"
            )
    return f"After block {layer}, Spearman's correlation is {', '.join(phrases)}. " if phrases else ""
