"""The labels of scatter plots do not overlap."""

import numpy as np
from draw_plot import draw

from jaxprune.report import plots


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


def test_ticks_of_a_logarithmic_axis_do_not_overlap():
    figure = plots.scatter_plot({"a": ([6e-5, 1e-4, 4.5e-4], [0.1, 0.2, 0.3])}, "cost", "gain", log_x=True)
    draw(figure)
    (axes,) = figure.axes
    labels = [label for minor in (False, True) for label in axes.get_xticklabels(minor=minor) if label.get_text()]
    low, high = axes.get_xlim()
    boxes = [label.get_window_extent() for label in labels if low <= label.get_position()[0] <= high]
    assert len(boxes) >= 3 and not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_a_line_that_would_be_the_only_entry_of_a_legend_has_its_name_beside_it():
    figure = plots.scatter_plot({"dense": ([4.0], [0.8]), "mine": ([2.0, 3.0], [0.5, 0.7])})
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert figure.axes[0].get_legend() is None and texts.count("mine") == texts.count("dense") == 1
    figure = plots.scatter_plot({"mine": ([2.0, 3.0], [0.5, 0.7]), "theirs": ([2.0, 3.0], [0.6, 0.7])})
    assert len(figure.axes[0].get_legend().get_texts()) == 2 and not [t for t in figure.axes[0].texts if t.get_text()]
