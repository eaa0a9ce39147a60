"""Tables and plots of costs and speeds."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxprune.viz import plots
from jaxprune.viz.report import Section


def describe(section: Section, rows: Sequence[Mapping[str, Any]], against: str) -> None:
    """Adds what plans cost to a section of a report.

    Args:
      section: the section.
      rows: what `costs.costs` returned, perhaps with more columns.
      against: the column that is drawn against GFLOPs.
    """
    section.table(rows, highlight={"images/s": "max", "kept": "max"}, formats=".3g")
    slower = [row["plan"] for row in rows if row["speed-up"] < 1]
    if slower:
        section.note(f"Slower than the dense model on this machine: {', '.join(slower)}.", kind="warning")
    points = {row["plan"]: ([row["GFLOPs"]], [row[against]]) for row in rows}
    section.figure(plots.scatter_plot(points, "GFLOPs", against, pareto=("min", "max")), f"{against} against GFLOPs.")
