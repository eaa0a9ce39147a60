"""The figure of a comparison: accuracy against cost, or against speed."""

from typing import Any

from jaxprune.bench.comparison import ComparedRow
from jaxprune.errors import UserError
from jaxprune.report.table import Table


def plot(rows: Table[ComparedRow], *, against: str = "gflops") -> Any:
    """Draws the accuracy of `compare`'s rows, with its intervals; a line joins the plans of a method.

    `jaxprune.report.plots.save(figure, "figure")` writes it as PDF and SVG.

    >>> from jaxprune.measures.intervals import Interval
    >>> row = lambda plan, cost: ComparedRow(plan, plan, cost, None, *[Interval(0.5, 0.4, 0.6)] * 3, 100)
    >>> plot(Table([row("dense", 4.0), row("topk", 2.0)])).axes[0].get_xlabel()
    'GFLOPs'

    Args:
      rows: of `compare`.
      against: "gflops", or "speed_up" if `compare` timed the networks (`rounds=`).

    Returns:
      A matplotlib `Figure`.

    Raises:
      UserError: speeds are to be drawn and were not measured.
    """
    from jaxprune.report import plots  # imported here, because a table does without matplotlib

    if against not in _LABELS:
        raise UserError(f"against={against!r} is not a cost: draw against one of {', '.join(_LABELS)}.")
    if against == "speed_up" and any(row.speed_up is None for row in rows):
        raise UserError("These networks were not timed: call compare(…, rounds=15) to draw speed-ups.")
    cost = lambda row: row.gflops if against == "gflops" else row.speed_up.median
    by_method: dict[str, list[ComparedRow]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(row)
    series: dict[str, list[ComparedRow]] = {}
    for method, of_method in by_method.items():  # a method with one plan is a point with the plan's name
        name = of_method[0].plan if len(of_method) == 1 else method
        series[f"{name} ({method})" if name in series else name] = sorted(of_method, key=cost)
    points = {name: ([cost(row) for row in of], [row.accuracy.value for row in of]) for name, of in series.items()}
    ends = {name: [(row.accuracy.low, row.accuracy.high) for row in of] for name, of in series.items()}
    tips = {name: [row.plan for row in of] for name, of in series.items()}
    return plots.scatter_plot(points, _LABELS[against], "accuracy", tips=tips, intervals=ends)


_LABELS = {"gflops": "GFLOPs", "speed_up": "speed-up over the dense network"}
