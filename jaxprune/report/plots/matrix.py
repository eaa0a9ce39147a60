"""Matrices of pairwise values, ordered by similarity."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Real
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from scipy.cluster import hierarchy
from scipy.spatial import distance

from jaxprune.report.plots.style import INK, PALETTE, literal, new_axes

_LONGEST = 28  # letters of a name


def cluster_order(likeness: Real[np.ndarray, "n n"]) -> Int[np.ndarray, " n"]:
    """Returns an order with similar neighbours: that of hierarchical clustering with average linkage.

    >>> cluster_order(np.array([[1, 0.1, 0.9], [0.1, 1, 0.2], [0.9, 0.2, 1]])).tolist()
    [0, 2, 1]

    Args:
      likeness: similarity of each pair, symmetric; NaN counts as dissimilar.
    """
    if len(likeness) < 3:
        return np.arange(len(likeness))
    unlike = np.nanmax(likeness) - np.nan_to_num(likeness, nan=np.nanmin(likeness))
    condensed = distance.squareform(unlike * (1 - np.eye(len(likeness))), checks=False)
    order = hierarchy.leaves_list(hierarchy.linkage(condensed, "average", optimal_ordering=True))
    return order if order[0] < order[-1] else order[::-1]


@literal
def matrix_plot(
    values: Real[np.ndarray, "n n"],
    names: Sequence[str],
    title: str = "",
    *,
    limits: tuple[float, float] = (0.0, 1.0),
    spec: str = ".2f",
    max_values: int = 16,
) -> Figure:
    """Draws a value for each pair, as opacity; in the order of `cluster_order`.

    Args:
      values: symmetric; NaN is left empty.
      names: of rows and columns.
      title: displayed above.
      limits: the values drawn transparent and opaque.
      spec: the format specification of the values.
      max_values: the largest number of rows for which values are written.
    """
    order, low, high = cluster_order(values), *limits
    values, count = np.asarray(values, float)[np.ix_(order, order)], len(values)
    tick_labels = [_shortened(names[int(index)]) for index in order]
    side = min(6.4, 0.6 + 0.09 * max(map(len, tick_labels)) + max(0.42 * count, 1.2))
    figure, axes = new_axes(title, "", "", (side, side - 0.2))
    opacity = np.clip(np.nan_to_num((values - low) / (high - low)), 0, 1)
    # Opacity works on both light and dark backgrounds.
    axes.imshow(np.dstack([np.broadcast_to(to_rgb(PALETTE[0]), (count, count, 3)), opacity]), interpolation="none")
    axes.grid(visible=False)
    axes.set_xticks(range(count), tick_labels, rotation=45, ha="right", rotation_mode="anchor", color=INK)
    axes.set_yticks(range(count), tick_labels, color=INK)
    for (row, column), value in np.ndenumerate(values):
        if count <= max_values and np.isfinite(value):
            colour = "#ffffff" if opacity[row, column] > 0.5 else INK
            axes.text(column, row, f"{value:{spec}}", ha="center", va="center", fontsize=7.5, color=colour)
    return figure


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
