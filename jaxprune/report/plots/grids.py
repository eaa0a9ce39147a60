"""Scatter plots side by side that share their vertical axis and their series."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from jaxprune.report.plots.style import INK, MUTED, PAPER, SIZE, Series, format_tick, literal, point_style, style_axes
from jaxprune.report.plots.tips import add_tips

_COLUMNS = 3


@literal
def scatter_grid(
    panels: Mapping[str, Series], ylabel: str = "", *, tips: Mapping[str, Mapping[str, Sequence[str]]] | None = None
) -> Figure:
    """Draws panels of points in rows of three; a series has the same colour and marker in all of them.

    Args:
      panels: {label of the horizontal axis: {name of a series: (x, y)}}; a series may be absent from a panel.
      ylabel: label of the common vertical axis.
      tips: {panel: {series: name of each of its points, shown with its coordinates in a report}}; by default the name
        of the series.
    """
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(SIZE[0], 0.4 + 2.1 * rows), layout="constrained", facecolor=PAPER)
    cells = figure.subplots(rows, columns, squeeze=False, sharey=True)
    names = list(dict.fromkeys(name for series in panels.values() for name in series))
    handles = {}
    for axes, (label, series) in zip(cells.ravel(), panels.items(), strict=False):
        style_axes(axes, xlabel=label)
        axes.axhline(0, color=MUTED, linewidth=0.9, dashes=(5, 3), zorder=1)
        for name, (x, y) in series.items():
            x, y = np.atleast_1d(x).astype(float), np.atleast_1d(y).astype(float)
            markers = axes.scatter(x, y, s=16, alpha=0.8, zorder=3, linewidths=0, **point_style(names.index(name)))
            point_names = (tips or {}).get(label, {}).get(name, [name] * len(x))
            add_tips(markers, x, y, point_names, label, ylabel)
            handles.setdefault(name, markers)
        axes.margins(0.08)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(format_tick))
    free = list(cells.ravel())[len(panels) :]
    for axes in free:
        axes.set_axis_off()
    for above, axes in zip(cells[-2] if rows > 1 else (), cells[-1], strict=False):
        if axes in free:
            above.tick_params(labelbottom=True)
    figure.supylabel(ylabel, fontsize=10, color=MUTED)
    options = {"frameon": False, "fontsize": 9, "labelcolor": INK, "handlelength": 1.2}
    ordered = [handles[name] for name in names]
    if len(names) > 1 and free:
        free[0].legend(ordered, names, loc="center", **options)
    elif len(names) > 1:
        figure.legend(ordered, names, loc="outside lower center", ncols=min(6, len(names)), **options)
    return figure
