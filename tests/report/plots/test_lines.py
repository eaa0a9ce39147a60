"""Line plots draw every series, and moving averages preserve the number of points."""

import numpy as np
from draw_plot import draw

from jaxprune.report import plots


def test_line_plot_draws_every_series():
    x = np.arange(50)
    figure = plots.line_plot(
        {"a": (x, np.exp(-x / 10)), "b": (x[:5], np.ones(5))},
        "step",
        "loss",
        "t",
        log_y=True,
        smooth=5,
        bands={"b": ([0.5] * 5, [2] * 5)},
    )
    (axes,) = figure.axes
    assert axes.get_yscale() == "log" and (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    assert len(axes.lines) == 3 and len(axes.collections) == 1
    assert draw(figure).startswith(b"\x89PNG")


def test_moving_average_keeps_length_and_constants():
    np.testing.assert_allclose(plots.moving_average(np.full(7, 3.0), 3), 3.0)
    np.testing.assert_allclose(plots.moving_average(np.array([0.0, 3.0, 6.0]), 3), [1.5, 3.0, 4.5])


def test_chance_is_drawn_beside_a_single_point():
    figure = plots.line_plot({"a": ([4], [0.3])}, reference={"chance": ([4, 4], [0.1, 0.1])}, shares=True)
    chance = next(line for line in figure.axes[0].lines if line.get_label() == "chance")
    assert list(chance.get_xdata()) == [0, 1]  # of the axes' width
