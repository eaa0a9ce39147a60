"""Tables, a plot and pictures of a classifier under token-reduction plans."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxprune.commands.benchmark.page import finding
from jaxprune.evaluate.collectors.plans import ROWS, Comparison
from jaxprune.report import Section, plots, spread


def describe(section: Section, rows: Sequence[Mapping[str, Any]], found: Comparison, *, classes: int) -> None:
    """Adds the rows of `table`, accuracy against cost and the pictures to a section of a report.

    Args:
      section: the section.
      rows: what `table` returned.
      found: what `compare` returned.
      classes: number of classes, for the accuracy by chance.
    """
    caption = f"Accuracy ({spread.BRACKETS}) and agreement with the dense network. {ROWS if found.realised else ''}"
    section.table(spread.as_ranges(rows), caption=caption.strip(), highlight={"accuracy": "max"}, formats=".3g")
    points = {row["plan"]: ([row["GFLOPs"]], [row["accuracy"]]) for row in rows}
    options = {"pareto": ("min", "max"), "reference": {"chance": 1 / classes}, "shares": True}
    plot = plots.scatter_plot(points, "GFLOPs", "accuracy", **options)
    section.figure(plot, f"{finding(rows, 'accuracy')}{plots.cut_note(plot)}")
    pictures(section, found)


def pictures(section: Section, found: Comparison) -> None:
    """Adds the patches that each plan keeps, and its disagreements with the dense network, to a section of a report."""
    for name, picture in found.kept.items():
        section.figure(
            picture,
            f"{name}: the image, then the patches left after each step of the plan. Dropped patches are grey "
            f"with a cross; "
            "patches merged into one token have a border of one colour.",
        )
    if found.disagreements:
        section.text("Images for which a plan and the dense network predict different classes:")
        section.gallery(found.disagreements, columns=2)
