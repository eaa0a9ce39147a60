"""Lines over a common axis."""

import numpy as np
from jaxtyping import Real
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from jaxprune.report.plots.shares import limit_shares
from jaxprune.report.plots.style import LINE, MUTED, Series, add_legend, format_tick, line_style, literal, new_axes
from jaxprune.report.plots.tips import add_tips


def moving_average(y: Real[np.ndarray, " n"], window: int) -> Real[np.ndarray, " n"]:
    """Returns the centred mean over `window` points, or over fewer near the ends."""
    kernel = np.ones(min(window, len(y)))
    total, count = (np.convolve(values, kernel, mode="same") for values in (y, np.ones(len(y))))
    return total / count


@literal
def line_plot(
    series: Series,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    *,
    log_y: bool = False,
    smooth: int | None = None,
    bands: Series | None = None,
    reference: Series | None = None,
    shares: bool = False,
) -> Figure:
    """Draws lines over a common axis.

    Args:
      series: {name: (x, y)}.
      xlabel: label of the horizontal axis.
      ylabel: label of the vertical axis.
      title: displayed above.
      log_y: whether the vertical axis is logarithmic.
      smooth: number of points of a moving average; the original line is drawn faintly behind it.
      bands: {name of a series: (low, high)}, an interval at each of its x.
      reference: {name: (x, y)} of lines to compare with, such as chance, drawn thin and dashed; a constant one is drawn
        over the whole width.
      shares: whether the values are shares of 1; the vertical axis then ends at 0 and at 1, or is visibly cut.
    """
    figure, axes = new_axes(title, xlabel, ylabel)
    for index, (name, (x, y)) in enumerate(series.items()):
        style, x, y = line_style(index), np.asarray(x), np.asarray(y, float)
        marker = "o" if len(x) <= 12 else None
        if smooth and len(x) > smooth:
            axes.plot(x, y, color=style["color"], linewidth=0.7, alpha=0.3)
            y = moving_average(y, smooth)
        (line,) = axes.plot(x, y, label=name, linewidth=1.8, marker=marker, markersize=4, **style)
        if marker:
            add_tips(line, x, y, [name] * len(x), xlabel, ylabel)
        if bands and name in bands:
            axes.fill_between(x, *np.asarray(bands[name], float), color=style["color"], alpha=0.15, linewidth=0)
    for name, (x, y) in (reference or {}).items():
        y = np.asarray(y, float)
        style = {"label": name, "color": MUTED, "linewidth": 1.1, "dashes": (5, 3), "zorder": 1}
        if np.ptp(y):
            axes.plot(x, y, **style)
        else:  # over the whole width, even if there is a single x
            axes.axhline(float(y[0]), **style)
    if log_y:
        axes.set_yscale("log")
        axes.grid(which="minor", axis="y", color=LINE, linewidth=0.3)
        axes.tick_params(which="minor", colors=MUTED, labelsize=8, length=0)
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(format_tick))
    axes.xaxis.set_major_formatter(FuncFormatter(format_tick))
    if all(np.issubdtype(np.asarray(x).dtype, np.integer) for x, _ in series.values()):
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.margins(x=0.02)
    if shares:
        values = [y for _, y in (*series.values(), *(reference or {}).values())]
        values += [edge for band in (bands or {}).values() for edge in band]
        limit_shares(axes, np.concatenate([np.ravel(np.asarray(y, float)) for y in values]))
    add_legend(figure, axes, len(series) + len(reference or {}))
    return figure
