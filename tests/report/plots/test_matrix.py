"""Matrices of pairs stand in an order in which neighbours are alike."""

import numpy as np
from draw_plot import draw

from jaxprune.report import plots
from jaxprune.report.plots.matrix import cluster_order


def test_what_is_alike_stands_together():
    group = np.array([0, 1, 0, 1, 0])
    order = cluster_order(np.where(group[:, None] == group[None], 0.9, 0.1))
    assert np.count_nonzero(np.diff(group[order])) == 1


def test_values_are_written_in_that_order_and_gaps_are_empty():
    values = np.array([[1, 0.1, 0.9], [0.1, 1, np.nan], [0.9, np.nan, 1]])
    figure = plots.matrix_plot(values, ["a", "b", "c"])
    (axes,) = figure.axes
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names in (["b", "a", "c"], ["b", "c", "a"], ["a", "c", "b"], ["c", "a", "b"])
    assert sorted(text.get_text() for text in axes.texts) == ["0.10", "0.10", "0.90", "0.90", "1.00", "1.00", "1.00"]
    assert not plots.matrix_plot(np.eye(40), [str(i) for i in range(40)]).axes[0].texts
    assert draw(figure) and draw(plots.matrix_plot(np.eye(2), ["a" * 80, "b" * 80]))


def test_confusion_matrix():
    figure = plots.confusion_matrix(np.array([[3, 1], [0, 0]]), ["a", "b"])
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["3", "1"]
    np.testing.assert_allclose(axes.images[0].get_array()[..., 3], [[0.75, 0.25], [0, 0]])
    assert not plots.confusion_matrix(np.eye(40), [str(i) for i in range(40)]).axes[0].texts
