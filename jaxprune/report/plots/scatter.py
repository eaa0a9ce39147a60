"""Points of several series, with labels and a Pareto front."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from jaxprune.report.plots.labels import place_labels
from jaxprune.report.plots.pareto import FRONT, Direction, pareto_front
from jaxprune.report.plots.shares import limit_shares
from jaxprune.report.plots.style import MUTED, SIZE, Series, add_legend, format_tick, literal, new_axes, point_style
from jaxprune.report.plots.tips import add_tips


@literal
def scatter_plot(
    series: Series,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    *,
    labels: Mapping[str, Sequence[str]] | None = None,
    pareto: tuple[Direction, Direction] | None = None,
    log_x: bool = False,
    reference: Mapping[str, float] | None = None,
    shares: bool = False,
    joined: bool = True,
    tips: Mapping[str, Sequence[str]] | None = None,
    intervals: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Figure:
    """Draws points with one colour and marker per series.

    Args:
      series: {name: (x, y)}; the name of a series of one point is written next to it instead of in the legend, and so
        is that of the only series with several among such points.
      xlabel: label of the horizontal axis.
      ylabel: label of the vertical axis.
      title: displayed above.
      labels: {name of a series: a text for each of its points}.
      pareto: which direction is better along x and y, such as ("min", "max") for cost and accuracy; if set, the Pareto
        front is drawn.
      log_x: whether the horizontal axis is logarithmic.
      reference: {name: y} to compare with, such as chance, drawn as dashed horizontal lines.
      shares: whether y are shares of 1; the vertical axis then ends at 0 and at 1, or is visibly cut.
      joined: whether a thin line connects the points of a series, in their order.
      tips: {name of a series: a name for each of its points, shown with its coordinates in a report}; by default the
        name of the series and the point's label.
      intervals: {name of a series: (low, high) along y of each of its points}, drawn as vertical lines.
    """
    figure, axes = new_axes(title, xlabel, ylabel, (SIZE[0], SIZE[1] + 0.5))
    if log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(NullFormatter())  # labels of all minor ticks would overlap
    texts, levels = [], reference or {}
    points = {name: (np.atleast_1d(x).astype(float), np.atleast_1d(y).astype(float)) for name, (x, y) in series.items()}
    if pareto is not None:
        every_x, every_y = (np.concatenate([point[axis] for point in points.values()]) for axis in (0, 1))
        front = pareto_front(every_x, every_y, pareto)
        steps = "steps-post" if pareto[0] == "min" else "steps-pre"
        if len(front) > 1:
            line = {"color": MUTED, "linewidth": 1.6, "alpha": 0.45, "drawstyle": steps, "zorder": 1, "gid": FRONT}
            axes.plot(every_x[front], every_y[front], **line)
    several = [name for name, (x, _) in points.items() if len(x) > 1]
    in_legend = len(several) + 2 * len(levels)
    for index, (name, (x, y)) in enumerate(points.items()):
        style = point_style(index)
        alone = len(x) == 1
        if joined:
            axes.plot(x, y, color=style["color"], linewidth=0.9, alpha=0.55, zorder=2)
        if intervals and name in intervals:
            axes.vlines(x, *np.transpose(intervals[name]), color=style["color"], linewidth=1.1, alpha=0.6, zorder=2)
        markers = axes.scatter(x, y, s=30, zorder=3, label=None if alone else name, linewidths=0, **style)
        point_labels = (labels or {}).get(name, [""] * len(x))
        names = (tips or {}).get(name, [f"{name}, {text}" if text else name for text in point_labels])
        if len(names) == len(x):
            add_tips(markers, x, y, names, xlabel, ylabel)
        # A legend of one entry is not drawn: its name stands at the first of its points.
        written = [name] if alone or (in_legend == 1 and len(points) > 1) else []
        texts += [(a, b, text) for a, b, text in zip(x, y, (labels or {}).get(name, written), strict=False)]
    axes.xaxis.set_major_formatter(FuncFormatter(format_tick))
    axes.yaxis.set_major_formatter(FuncFormatter(format_tick))
    axes.margins(0.08)
    for name, level in levels.items():
        axes.axhline(level, color=MUTED, linewidth=1.1, dashes=(5, 3), zorder=1, label=f"{name} ({level:.3g})")
    if shares:
        ends = [end for of_series in (intervals or {}).values() for pair in of_series for end in pair]
        limit_shares(axes, [*(y for _, heights in points.values() for y in heights), *ends, *levels.values()])
    # The name of a single reference is not written next to its line, where points and their names may be.
    add_legend(figure, axes, in_legend)
    place_labels(figure, axes, texts, np.concatenate([np.stack(point, 1) for point in points.values()]))
    return figure
