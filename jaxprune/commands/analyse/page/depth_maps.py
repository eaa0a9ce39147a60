"""The mean depth that patches reach, as maps, on one data set and on several."""

from collections.abc import Mapping

import numpy as np

from jaxprune.commands.analyse.page.parts import Analysis, Rows, add_table, at_one_rate, differing, plan_name
from jaxprune.commands.analyse.tables.outcomes import name_of
from jaxprune.report import Section, plots

SHOWN = 24  # maximum number of maps


def describe(section: Section, maps: Mapping[tuple[str, str], np.ndarray], rows: Rows, analysis: Analysis) -> None:
    """Adds the mean depth at each position, and the similarity of these maps.

    Of many maps, those of the keep rate nearest to 0.5 are drawn.
    """
    observations, total = analysis.observations, len(maps)
    depth = max(observed.member.num_layers for observed in observations)
    if total > SHOWN:
        maps = {name_of(observed): maps[name_of(observed)] for observed in at_one_rate(observations, maps)[:SHOWN]}
    named = {plan_name(*member, analysis.several_networks): values for member, values in maps.items()}
    varying = differing(observations)
    spans = {name: float(np.ptp(maps[member])) for name, member in zip(named, maps, strict=True) if member in varying}
    finding, note = "", "" if total == len(maps) else "Those of one keep rate are shown. "
    if spans:
        low, high = (f"{choose(spans.values()):.1f}" for choose in (min, max))
        finding = f"Positions differ by {low}{f' to {high}' if high != low else ''} blocks. "
    section.figure(
        plots.map_grid(named, "blocks", (0, depth)),
        f"Blocks that the patch at each position passes, on average over {len(observations[0]['index'])} images, of "
        f"{depth}. {finding}{note}Patterns that do not depend on the image, such as random, are the same for every "
        "image.",
    )
    if rows:
        add_table(
            section,
            rows,
            "Similarity of these maps: for equal maps, Spearman's correlation and shared mass (SIM) are 1, "
            "Jensen–Shannon divergence (JSD, bits) and earth mover's distance (EMD, patches) 0.",
        )


def across_data_sets(section: Section, rows: Rows, about: Mapping[str, str]) -> None:
    """Adds the similarity of a plan's maps on several data sets.

    Args:
      rows: what `tables.patterns.across_data_sets` returned.
      about: location of each data set.
    """
    section.text(" ".join(f"`{name}` is {where}." for name, where in about.items()))
    finite = [row for row in rows if np.isfinite(row["Spearman"])]
    finding = ""
    if finite:
        values = [row["Spearman"] for row in finite]
        finding = f"Spearman's correlation is {np.mean(values):.2f} on average, from {min(values):.2f} to "
        finding += f"{max(values):.2f}. "
    add_table(
        section,
        rows,
        f"Mean depth under one plan on two data sets. {finding}Spearman, Pearson and SIM are 1 for equal maps, "
        "JSD and KL (bits) and EMD (patches) 0. Constant maps have no correlation.",
    )
