"""Horizontal bars with their values."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from jaxprune.report.plots.style import INK, PALETTE, SIZE, format_tick, literal, new_axes


@literal
def bar_plot(
    values: Mapping[str, float],
    errors: Mapping[str, float] | None = None,
    reference: Mapping[str, float] | None = None,
    *,
    xlabel: str = "",
    title: str = "",
    spec: str = ".3g",
    limits: tuple[float, float] | None = None,
    width: float = SIZE[0],
) -> Figure:
    """Draws horizontal bars from top to bottom, with their values in a column at the right.

    Args:
      values: {name: length of its bar}.
      errors: {name: half width of its interval}.
      reference: {name: value} to compare with, such as "dense" or "chance", drawn as dashed vertical lines.
      xlabel: label of the horizontal axis.
      title: displayed above.
      spec: the format specification of the values.
      limits: the ends of the horizontal axis, which no interval exceeds; by default, they follow from the values.
      width: of the plot in inches.
    """
    figure, axes = new_axes(title, xlabel, "", (width, 0.9 + 0.3 * len(values)))
    names, lengths = list(values), np.array(list(values.values()), float)
    half = np.array([(errors or {}).get(name, 0.0) for name in names])
    rows = np.arange(len(names))
    axes.barh(rows, lengths, height=0.68, color=PALETTE[0])
    low, high = limits or (-np.inf, np.inf)
    reach = np.stack([np.minimum(half, lengths - low), np.minimum(half, high - lengths)])
    reach = np.where(half > 0, np.maximum(reach, 0), np.nan)
    axes.errorbar(lengths, rows, xerr=reach, fmt="none", ecolor=INK, elinewidth=1, capsize=2.5)
    for row, length in zip(rows, lengths, strict=True):
        if np.isfinite(length):
            # Beside the axes, where neither bars and intervals nor reference lines can cross the value.
            place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
            text = axes.annotate(f"{length:{spec}}", (1, row), (6, 0), **place)
            text.set(va="center", ha="left", fontsize=9, color=INK)
    for index, (name, level) in enumerate((reference or {}).items()):
        axes.axvline(level, color=PALETTE[1 + index], linewidth=1.4, linestyle="--", label=f"{name} ({level:{spec}})")
    axes.set_yticks(rows, names, color=INK)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.04)
    if limits:
        axes.set_xlim(low, high + 0.01 * (high - low))  # room for the cap of an interval that ends there
    axes.xaxis.set_major_formatter(FuncFormatter(format_tick))
    if reference:
        # Below the axes: above them is the title.
        place = {"loc": "outside lower right", "ncols": len(reference)}
        figure.legend(**place, frameon=False, fontsize=9, labelcolor=INK)
    return figure
