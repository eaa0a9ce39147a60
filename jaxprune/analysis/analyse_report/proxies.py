"""Features and patterns as proxies for accuracy."""

from collections.abc import Mapping

import numpy as np

from jaxprune.analysis.analyse_report.parts import Rows, add_table, as_series, grouped
from jaxprune.analysis.anchors import DISTANCES
from jaxprune.viz import plots, spread
from jaxprune.viz.report import Section

_SHOWN = 5  # pairs: fewer are not drawn
_LABELLED = 40  # pairs: with more, methods are named instead of plans
_ENOUGH = 10  # pairs: a bootstrap interval of fewer is too narrow


def describe(
    section: Section,
    anchors: Rows,
    proxies: Rows,
    many: bool,
    methods: Mapping[tuple[str, str], str],
    measure: str = "accuracy",
) -> None:
    """Adds distances from anchors, and their rank correlation with the plans' differences in accuracy.

    Args:
      methods: the method of each (network, plan).
    """
    rows = [row for row in anchors if "accuracy difference" in row]
    last = {(row["network"], row["layer"]) for row in proxies}
    for (network, method), own in grouped(rows, ("network", "anchor method")).items():
        layer = max(row["layer"] for row in own)
        for metric in ("Procrustes", "IoU", "NMI"):
            pairs = [row for row in own if row["layer"] == layer and np.isfinite(row[metric])]
            if len(pairs) < _SHOWN or (network, layer) not in last:
                continue
            names = [methods[network, row["plan"]] if len(pairs) > _LABELLED else row["plan"] for row in pairs]
            points = as_series(pairs, (metric, "accuracy difference"), names)
            where = f" in {network}" if many else ""
            apart = " distance of features" if metric in DISTANCES else ""
            what = f"{measure[0].upper()}{measure[1:]} of {method}{where}"
            section.figure(
                plots.scatter_plot(points, f"{metric}, block {layer}", f"{measure} difference", joined=False),
                f"{_correlation(proxies, network, method, layer, metric)} {what} minus "
                f"that of each plan against {metric}{apart}; a point "
                f"is a plan, n = {pairs[0]['images']} images.",
            )
    if proxies:
        add_table(
            section,
            spread.as_ranges(proxies),
            "Rank correlations between a metric and the difference in accuracy from the anchor, one pair per plan; "
            "in brackets the 95 % interval (bootstrap over pairs), `p`: p-value of no correlation. A good "
            "proxy is near 1 "
            f"for distances ({', '.join(DISTANCES)}) and near -1 for IoU and NMI. "
            f"Intervals of fewer than {_ENOUGH} pairs are too narrow.",
            ".2f",
        )
    deepest = {network: max(row["layer"] for row in own) for (network,), own in grouped(anchors, ("network",)).items()}
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


def _correlation(rows: Rows, network: str, method: str, layer: int, metric: str) -> str:
    for row in rows:
        if (row["network"], row["anchor"], row["layer"], row["metric"]) == (network, method, layer, metric):
            low, high = row["Spearman low"], row["Spearman high"]
            few = row["pairs"] < _ENOUGH
            crosses = ", too few to tell" if few else ", not significant" if low <= 0 <= high else ""
            value = f"{row['Spearman']:.2f} [{low:.2f}, {high:.2f}]"
            return f"Spearman's correlation is {value} over {row['pairs']} plans{crosses}."
    return ""
