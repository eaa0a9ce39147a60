"""Plots show what they were given, without pyplot's global state."""

import io
import sys

import numpy as np
import pytest

from jaxprune.viz import plots


def draw(figure) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=50)
    return data.getvalue()


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


def test_bar_plot():
    figure = plots.bar_plot(
        {"x": 2.0, "y": 0.1, "z": float("nan")}, errors={"x": 0.5}, reference={"dense": 3.0}, spec=".2f"
    )
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "y", "z"]
    assert [text.get_text() for text in axes.texts] == ["2.00", "0.10"]
    assert draw(figure)


@pytest.mark.parametrize(
    ("better", "expected"),
    [(("min", "max"), [1, 0, 3]), (("max", "max"), [3]), (("min", "min"), [1]), (("max", "min"), [1, 2, 3])],
)
def test_pareto_front(better, expected):
    x, y = np.array([2.0, 1.0, 2.5, 4.0]), np.array([3.0, 1.0, 2.0, 5.0])
    assert plots.pareto_front(x, y, better).tolist() == expected


def test_pareto_front_lists_coinciding_points_once():
    assert plots.pareto_front(np.array([1.0, 1.0]), np.array([2.0, 2.0])).tolist() == [0]


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


def test_confusion_matrix():
    figure = plots.confusion_matrix(np.array([[3, 1], [0, 0]]), ["a", "b"])
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["3", "1"]
    np.testing.assert_allclose(axes.images[0].get_array()[..., 3], [[0.75, 0.25], [0, 0]])
    assert not plots.confusion_matrix(np.eye(40), [str(i) for i in range(40)]).axes[0].texts


def test_pyplot_is_never_imported():
    assert "matplotlib.pyplot" not in sys.modules
