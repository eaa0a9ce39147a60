"""The labels of scatter plots do not overlap."""

import numpy as np
from draw_plot import draw

from jaxprune.viz import plots


def test_scatter_labels_do_not_overlap():
    rng = np.random.default_rng(0)
    series = {f"method {i}": ([x], [y]) for i, (x, y) in enumerate(rng.random((10, 2)))}
    series["sweep"] = ([0.1, 0.5], [0.2, 0.9])
    figure = plots.scatter_plot(series, "cost", "gain", pareto=("min", "max"), labels={"sweep": [".25", ".5"]})
    (axes,) = figure.axes
    assert draw(figure)
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert len(boxes) == 12
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
