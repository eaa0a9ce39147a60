"""Maps side by side on one scale."""

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Real
from matplotlib.figure import Figure

from jaxprune.report.plots.style import INK, MUTED, PAPER, SIZE, literal

_COLUMNS = 4


@literal
def map_grid(
    maps: Mapping[str, Real[np.ndarray, "rows columns"]], label: str = "", limits: tuple[float, float] | None = None
) -> Figure:
    """Draws maps in rows of four with one colour scale, at the right.

    Args:
      maps: {name: values}.
      label: of the scale.
      limits: the ends of the scale; by default the smallest and the largest value of all maps.
    """
    low, high = limits or (min(map(np.min, maps.values())), max(map(np.max, maps.values())))
    columns = min(_COLUMNS, len(maps))
    rows = math.ceil(len(maps) / columns)
    figure = Figure(figsize=(SIZE[0], 0.3 + 1.75 * rows), layout="constrained", facecolor=PAPER)
    grid = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    for axes in grid:
        axes.set_axis_off()
    mappable = None
    for axes, (name, values) in zip(grid, maps.items(), strict=False):
        axes.set_title(name, fontsize=8.5, color=INK)
        mappable = axes.imshow(values, vmin=low, vmax=high, cmap="magma", interpolation="none")
    if mappable is not None:
        bar = figure.colorbar(mappable, ax=list(grid), shrink=0.8, aspect=12 * rows)
        bar.set_label(label, color=MUTED, fontsize=9)
        bar.ax.tick_params(colors=MUTED, labelsize=8, length=0)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return figure
