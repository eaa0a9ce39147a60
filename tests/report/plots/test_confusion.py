"""Confusion matrices draw counts and shares."""

import numpy as np

from jaxprune.report import plots


def test_confusion_matrix():
    figure = plots.confusion_matrix(np.array([[3, 1], [0, 0]]), ["a", "b"])
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["3", "1"]
    np.testing.assert_allclose(axes.images[0].get_array()[..., 3], [[0.75, 0.25], [0, 0]])
    assert not plots.confusion_matrix(np.eye(40), [str(i) for i in range(40)]).axes[0].texts
