"""Tables and plots of costs and speeds."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxprune.report import Section, plots, spread


def describe(
    section: Section, rows: Sequence[Mapping[str, Any]], against: str, *, rounds: int, classes: int = 0
) -> None:
    """Adds the costs of plans to a section of a report.

    Args:
      section: the section.
      rows: what `costs.costs` returned, perhaps with more columns.
      against: the column to draw against GFLOPs.
      rounds: number of timing rounds.
      classes: number of classes, for the accuracy by chance; 0 without accuracies.
    """
    caption = f"Speed-up: {spread.ranges(rounds)}."
    if "accuracy" in rows[0]:
        caption += f" Accuracy: {spread.BRACKETS}."
    section.table(spread.as_ranges(rows), caption=caption, highlight={"images/s": "max", "kept": "max"}, formats=".3g")
    slower = [row["plan"] for row in rows if row["speed-up"] < 1]
    if slower:
        section.note(f"Slower than the dense model on this machine: {', '.join(slower)}.", kind="warning")
    points = {row["plan"]: ([row["GFLOPs"]], [row[against]]) for row in rows}
    if against == "accuracy":
        chance = {"chance": 1 / classes} if classes else None
        plot = plots.scatter_plot(points, "GFLOPs", against, pareto=("min", "max"), reference=chance, shares=True)
    else:
        plot = plots.scatter_plot(points, "GFLOPs", against, pareto=("min", "max"))
    section.figure(plot, f"{finding(rows, against)}{plots.cut_note(plot)}")


def finding(rows: Sequence[Mapping[str, Any]], against: str) -> str:
    """Returns a sentence on the contestant with the highest value of a column, compared with the dense network."""
    dense, *others = rows
    if not others:
        return f"{against.capitalize()} against GFLOPs."
    best = max(others, key=lambda row: row[against])
    show = (lambda value: f"{value:.1%}") if against == "accuracy" else (lambda value: f"{value:.3g}")
    return (
        f"Of the plans, {best['plan']} has the highest {against}: {show(best[against])} with {best['GFLOPs']:.3g} "
        f"GFLOPs. {dense['plan']} has {show(dense[against])} with {dense['GFLOPs']:.3g}. "
        "The grey line joins the best plans at each cost."
    )
