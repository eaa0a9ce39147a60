"""Plans on the page: cost and accuracy of each, the patches that it keeps, and where it disagrees."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxprune.evaluate.collectors.agreement import Disagreement, Scores
from jaxprune.evaluate.collectors.kept import KeptPatches
from jaxprune.evaluate.collectors.plans import Comparison, PlanRow
from jaxprune.measures.intervals import NO_INTERVAL, Interval
from jaxprune.measures.leaders import leaders
from jaxprune.reduction import DENSE
from jaxprune.report import Section, findings, plots, spread
from jaxprune.report.pictures.base import Picture
from jaxprune.report.pictures.film_strip import still
from jaxprune.report.pictures.prediction_card import prediction_card
from jaxprune.report.pictures.steps_of_plan import steps_of_plan
from jaxprune.report.pictures.text import label
from jaxprune.report.table import Table

# Explanation of the columns of `CountCells` in a table.
TOKEN_COUNTS = (
    "`rows`: mean number of rows in use after each step, of those that the plan allows and GFLOPs count; "
    "`rate`: the former as a share of the patches."
)


# Explanation of the column "accuracy − dense" in a table.
PAIRED = "the difference from dense is paired by image (95 %, Agresti and Min)"


# Explanation of the rows of networks on smaller images, and of the column that they give.
RIVALS = (
    "img_size=N is the dense network on the same images at that size, without a plan: the baseline that a plan has to "
    "beat. On images that all of these rows get wrong, what is right is owed to the tokens of the full size."
)


class Point(NamedTuple):
    """A contestant: its name, cost, and the value that is drawn against it, with its interval.

    Attributes:
      difference: of the value from the dense network's, paired by image; NaN where it is not known.
    """

    name: str
    gflops: float
    value: Interval
    difference: Interval = NO_INTERVAL


def rivals(model: Any) -> str:
    """Explains the rows of networks on smaller images, the rivals of plans for a network, and the column they give."""
    plan = getattr(model, "plan", None)
    if plan is None:
        return RIVALS
    return (
        f"{RIVALS} This network was trained under the plan {plan}, which its row {DENSE} follows; on smaller images it "
        "has the same weights and follows no plan, which nothing trained it for."
    )


def describe(
    section: Section,
    rows: Table[PlanRow],
    comparison: Comparison,
    *,
    class_names: Sequence[str],
    model: Any = None,
    allowed: Sequence[int] | None = None,
) -> None:
    """Adds the table, accuracy against cost and the pictures to a section of a report.

    Args:
      model: the network that is called dense.
      allowed: the classes that predictions are restricted to; None for all.
    """
    counts = f" {TOKEN_COUNTS}" if comparison.token_counts else ""
    beside = f" {rivals(model)}" if comparison.on_hard else ""
    caption = (
        f"Accuracy ({spread.BRACKETS}; {PAIRED}) and agreement with the dense network, n = {comparison.images} images."
    )
    section.table(rows, caption=f"{caption}{counts}{beside}")
    points = [accuracy_point(row.plan, row.gflops, row.result.scores) for row in rows]
    against_cost(
        section,
        points,
        "accuracy",
        reference={"chance": 1 / len(class_names if allowed is None else allowed)},
        shares=True,
    )
    pictures(section, comparison, class_names)


def accuracy_point(name: str, gflops: float, scores: Scores) -> Point:
    """Returns the accuracy of a contestant against its cost."""
    difference = scores.difference if isinstance(scores.difference, Interval) else NO_INTERVAL
    return Point(name, gflops, scores.accuracy, difference)


def against_cost(
    section: Section,
    points: Sequence[Point],
    value: str,
    *,
    reference: Mapping[str, float] | None = None,
    shares: bool = False,
) -> None:
    """Adds a plot of a value against GFLOPs, with a sentence on the highest one, if it stands out.

    Args:
      points: the dense network first.
      value: what is drawn: "accuracy" or "speed-up".
      reference: {name: value} to compare with, such as chance.
      shares: whether the values are shares.
    """
    series = {point.name: ([point.gflops], [point.value.value]) for point in points}
    plot = plots.scatter_plot(series, "GFLOPs", value, pareto=("min", "max"), reference=reference, shares=shares)
    section.figure(plot, f"{finding(points, value)}{plots.front_note(plot)}{plots.cut_note(plot)}")


def finding(points: Iterable[Point], value: str) -> str:
    """Returns a sentence on the plan with the highest value, if one stands out, and the dense network, the first point.

    Where several may have the highest value, it names the cheapest of them: FLOPs are exact. What the plan that it
    names loses is paired by image.
    """
    dense, *reduced = points
    if not reduced:
        return f"{value.capitalize()} against GFLOPs."
    spec, cost = ".1%" if value == "accuracy" else ".2f", {point.name: point.gflops for point in reduced}
    values = {point.name: point.value for point in reduced}
    level = leaders(values)
    cheapest = min(level, key=lambda name: cost[name])
    cheapest_note = f"; the cheapest of them is {cheapest}" if len(level) > 1 else ""
    difference = next(point.difference for point in reduced if point.name == cheapest)
    paired = ""
    if not math.isnan(difference.value):
        paired = f"; {cheapest} minus {dense.name}: {findings.with_interval(difference, f'+{spec}')}, paired by image"
    return (
        f"{findings.finding(values, value, spec=spec)}{cheapest_note}, with {cost[cheapest]:.3g} GFLOPs. "
        f"{dense.name} has {findings.with_interval(dense.value, spec)} with {dense.gflops:.3g}{paired}."
    )


def pictures(section: Section, comparison: Comparison, class_names: Sequence[str]) -> None:
    """Adds the patches that each plan keeps, and its disagreements with the dense network, to a section of a report."""
    kept_patches(section, comparison.kept)
    if comparison.disagreements:
        section.text("Images for which a plan and the dense network predict different classes:")
        section.gallery([_card(image, class_names) for image in comparison.disagreements], columns=2)


def kept_patches(section: Section, kept: Mapping[str, KeptPatches]) -> None:
    """Adds the patches that each plan keeps of some images."""
    for name, patches in kept.items():
        section.figure(
            steps_of_plan(*patches),
            f"{name}: the image, then the patches left after each step of the plan. Dropped patches are grey "
            "with a cross; patches merged into one token have a border of one colour.",
        )


def _card(disagreement: Disagreement, class_names: Sequence[Any]) -> Picture:
    name, image, truth, probabilities, dense = disagreement
    card = prediction_card(still(image), class_names, probabilities, truth=truth)
    return label(card, f"{name}; dense: {class_names[dense]}")
