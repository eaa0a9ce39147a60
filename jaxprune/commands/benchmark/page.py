"""Cost and speed of plans on the page."""

from jaxprune.bench.costs import BenchmarkRow
from jaxprune.commands.shared.plans_page import PAIRED, Point, accuracy_point, against_cost
from jaxprune.report import Section, spread
from jaxprune.report.table import Table

# What the command is run for comes first: a narrow page shows the rest behind a scroll bar.
COLUMNS = (
    *("plan", "speed_up", "verdict", "accuracy", "difference", "agreement", "images_per_second", "latency", "gflops"),
    *("gflops_compiled", "implied", "ratio", "rescued", "hard", "tokens", "rate"),
)


def describe(section: Section, rows: Table[BenchmarkRow], *, rounds: int, classes: int, images: int = 0) -> None:
    """Adds the costs of plans, with their accuracy if there are images, to a section of a report.

    Args:
      rows: one per contestant, the dense network first.
      rounds: number of timing rounds.
      classes: number of classes, for the accuracy by chance; 0 without images.
      images: number of images of the accuracy; 0 without images.
    """
    caption = (
        f"Speed-up: {spread.ranges(rounds)}."
        f"{f' Accuracy: {spread.BRACKETS}; {PAIRED}; n = {images} images.' * bool(images)}"
    )
    section.table(rows.only(*COLUMNS), caption=caption)
    slower = [row.cost.plan for row in rows if row.cost.promise.slower]
    if slower:
        section.note(f"Slower than the dense model on this machine: {', '.join(slower)}.", kind="warning")
    if classes:
        points = [accuracy_point(row.cost.plan, row.cost.gflops, row.result.scores) for row in rows if row.result]
        against_cost(section, points, "accuracy", reference={"chance": 1 / classes}, shares=True)
    else:
        points = [Point(row.cost.plan, row.cost.gflops, row.cost.promise.range) for row in rows]
        against_cost(section, points, "speed-up")
