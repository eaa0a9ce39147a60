"""Matrices of pairs: values of pairs ordered by similarity, and the confusions of classes."""

from collections.abc import Sequence

import numpy as np
import scipy
from jaxtyping import Float, Int, Real
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from jaxprune.report.plots.style import INK, LINE, PALETTE, format_tick, literal, new_axes

_LONGEST = 28  # letters of a name


def cluster_order(similarity: Real[np.ndarray, "n n"]) -> Int[np.ndarray, " n"]:
    """Returns an order with similar neighbours: that of hierarchical clustering with average linkage.

    >>> cluster_order(np.array([[1, 0.1, 0.9], [0.1, 1, 0.2], [0.9, 0.2, 1]])).tolist()
    [0, 2, 1]

    Args:
      similarity: of each pair, symmetric; NaN counts as dissimilar.
    """
    if len(similarity) < 3:
        return np.arange(len(similarity))
    unlike = np.nanmax(similarity) - np.nan_to_num(similarity, nan=np.nanmin(similarity))
    condensed = scipy.spatial.distance.squareform(unlike * (1 - np.eye(len(similarity))), checks=False)
    order = scipy.cluster.hierarchy.leaves_list(
        scipy.cluster.hierarchy.linkage(condensed, "average", optimal_ordering=True)
    )
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
    _draw_cells(axes, opacity)
    _name_cells(axes, tick_labels)
    if count <= max_values:
        _write_cells(axes, opacity, np.where(np.isfinite(values), np.vectorize(f"{{:{spec}}}".format)(values), ""), 7.5)
    return figure


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
    _draw_cells(axes, share)
    axes.spines[:].set_visible(True)
    if count > max_labels:
        return figure
    for between in np.arange(0.5, count - 1):
        axes.axvline(between, color=LINE, linewidth=0.6, zorder=0)
        axes.axhline(between, color=LINE, linewidth=0.6, zorder=0)
    _name_cells(axes, class_names)
    _write_cells(axes, share, np.vectorize(lambda value: format_tick(value) if value else "")(matrix), 8)
    return figure


def _draw_cells(axes: Axes, shares: Float[np.ndarray, "n n"]) -> None:
    """Draws shares as opacity, which works on both light and dark backgrounds."""
    axes.imshow(np.dstack([np.broadcast_to(to_rgb(PALETTE[0]), (*shares.shape, 3)), shares]), interpolation="none")
    axes.grid(visible=False)


def _name_cells(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor", color=INK)
    axes.set_yticks(range(len(names)), names, color=INK)


def _write_cells(axes: Axes, shares: np.ndarray, texts: np.ndarray, size: float) -> None:
    for (row, column), text in np.ndenumerate(texts):
        if text:
            colour = "#ffffff" if shares[row, column] > 0.5 else INK
            axes.text(column, row, text, ha="center", va="center", fontsize=size, color=colour)


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
