"""Horizontal bars with their values."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from jaxprune.viz.plots.style import INK, PALETTE, SIZE, format_tick, new_axes


def bar_plot(
    values: Mapping[str, float],
    errors: Mapping[str, float] | None = None,
    reference: Mapping[str, float] | None = None,
    *,
    xlabel: str = "",
    title: str = "",
    spec: str = ".3g",
) -> Figure:
    """Draws horizontal bars from top to bottom, each labelled with its value.

    Args:
      values: {name: length of its bar}.
      errors: {name: half width of its interval}.
      reference: {name: value} to compare with, such as "dense" or "chance", drawn as dashed vertical lines.
      xlabel: label of the horizontal axis.
      title: displayed above.
      spec: the format specification of the values.
    """
    figure, axes = new_axes(title, xlabel, "", (SIZE[0], 0.9 + 0.3 * len(values)))
    names, lengths = list(values), np.array(list(values.values()), float)
    half = np.array([(errors or {}).get(name, 0.0) for name in names])
    rows = np.arange(len(names))
    axes.barh(rows, lengths, height=0.68, color=PALETTE[0])
    axes.errorbar(
        lengths, rows, xerr=np.where(half > 0, half, np.nan), fmt="none", ecolor=INK, elinewidth=1, capsize=2.5
    )
    longest = np.nanmax(np.abs([*lengths, *(reference or {}).values()]), initial=0.0)
    for row, length, reach in zip(rows, lengths, half, strict=True):
        if np.isfinite(length):
            inside = length - reach > 0.2 * longest  # whether the bar has room for its value
            end = length - reach if inside else max(length, 0.0) + reach
            text = axes.annotate(f"{length:{spec}}", (end, row), (-4 if inside else 4, 0), textcoords="offset points")
            text.set(va="center", ha="right" if inside else "left", fontsize=9, color="#ffffff" if inside else INK)
    for index, (name, level) in enumerate((reference or {}).items()):
        axes.axvline(level, color=PALETTE[1 + index], linewidth=1.4, linestyle="--", label=f"{name} ({level:{spec}})")
    axes.set_yticks(rows, names, color=INK)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(FuncFormatter(format_tick))
    if reference:
        place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.2, "ncols": len(reference)}
        axes.legend(**place, frameon=False, fontsize=9, labelcolor=INK)
    return figure
