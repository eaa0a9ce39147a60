"""Confusion matrices."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Real
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from jaxprune.report.plots.style import INK, LINE, PALETTE, format_tick, literal, new_axes


@literal
def confusion_matrix(
    matrix: Real[np.ndarray, "c c"], class_names: Sequence[str], title: str = "", max_labels: int = 20
) -> Figure:
    """Draws counts of (true class, predicted class), each cell coloured by its share of its row's total.

    Args:
      matrix: the counts; a row per true class, a column per predicted class.
      class_names: one name per class.
      title: displayed above.
      max_labels: the largest number of classes for which counts and names are written.
    """
    matrix = np.asarray(matrix)
    count = len(matrix)
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side = min(6.0, 2.0 + 0.36 * count)
    figure, axes = new_axes(title, "predicted", "true", (side, side - 0.3))
    # Shares are shown as opacity, which works on both light and dark backgrounds.
    cells = np.dstack([np.broadcast_to(to_rgb(PALETTE[0]), (count, count, 3)), share])
    axes.imshow(cells, interpolation="none")
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    if count > max_labels:
        return figure
    for between in np.arange(0.5, count - 1):
        axes.axvline(between, color=LINE, linewidth=0.6, zorder=0)
        axes.axhline(between, color=LINE, linewidth=0.6, zorder=0)
    axes.set_xticks(range(count), class_names, rotation=45, ha="right", rotation_mode="anchor", color=INK)
    axes.set_yticks(range(count), class_names, color=INK)
    for (row, column), value in np.ndenumerate(matrix):
        if value:
            colour = "#ffffff" if share[row, column] > 0.5 else INK
            axes.text(column, row, format_tick(value), ha="center", va="center", fontsize=8, color=colour)
    return figure
