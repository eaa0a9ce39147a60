"""The report section on a network that spends by image: accuracy against cost, shares of the exits, pictures."""

import numpy as np

from jaxprune.bench.spending import timed
from jaxprune.dynamic import Segmented
from jaxprune.dynamic.parts.gated import GatedNetwork
from jaxprune.evaluate.spending import Spent, pictures_by_exit, points
from jaxprune.report import plots, spread
from jaxprune.report.section import Section
from jaxprune.report.table import Table

_GATED = (
    "The network decides for each image what to compute. Costs are counted from its decisions: masks of places and of "
    "channels save no time here, blocks that are left out do with `dynamic.LayerSkipper`."
)
_EXITS = (
    "Thresholds for a budget are chosen on one half of the held-out images, drawn at random, and all rows measured on "
    "the other. Costs are counted, not timed; `dynamic.Engine` runs images so that they cost what is counted."
)


def describe(section: Section, model: Segmented, spent: Spent, *, rounds: int = 0, batch_size: int = 32) -> Table:
    """Adds the table, the plot and the pictures; returns the table.

    Args:
      rounds: of measuring the speed of each row; 0: it is not measured.
      batch_size: the largest number of images that are computed together while it is.
    """
    rows = points(spent, dial=model.dial)
    if rounds:
        rows = timed(model, rows, np.stack(spent.pictures), batch_size=batch_size, rounds=rounds)
    section.text(_GATED if isinstance(model, GatedNetwork) else _EXITS)
    speed = f". Images a second: {spread.ranges(rounds)}" if rounds else ""
    caption = f"Accuracy with its 95 % interval (Wilson), and the cost of an image: mean, 5 % and 95 %{speed}."
    section.table(rows, caption=caption)
    ways = {"each exit for all": "all at", "thresholds for a budget": "for", "steps of its dial": "step"}
    series, labels = {}, {}
    for name, beginning in ways.items():
        group = [row for row in rows if row.leaving.startswith(beginning)]
        if group:
            series[name] = ([row.cost[0] for row in group], [row.accuracy.value for row in group])
            labels[name] = [row.leaving for row in group]
    section.figure(
        plots.scatter_plot(series, "GMAC an image", "accuracy", "Accuracy against cost", labels=labels, shares=True),
        "Each exit for all images, and thresholds for budgets" + ", and the network's dial" * bool(model.dial) + ".",
    )
    if pictures := pictures_by_exit(spent):
        section.gallery([picture for picture, _ in pictures], [caption for _, caption in pictures])
    return rows
