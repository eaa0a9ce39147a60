"""Points carry their names and values."""

import numpy as np

from jaxprune.report import plots, point_texts


def texts(artist):
    return point_texts.from_gid(artist.get_gid())


def test_points_carry_their_names_and_values():
    series = {"a": ([1, 2], [0.5, np.nan]), "b": ([3], [0.25])}
    (axes,) = plots.scatter_plot(series, "cost", "gain", tips={"a": ["first", "second"]}).axes
    assert [texts(drawn) for drawn in axes.collections] == [["first: cost 1, gain 0.5"], ["b: cost 3, gain 0.25"]]
    (axes,) = plots.scatter_plot({"a": ([1, 2], [3, 4])}, labels={"a": ["x", "y"]}).axes
    assert texts(axes.collections[0]) == ["a, x: 1, 3", "a, y: 2, 4"]
    (axes,) = plots.line_plot({"a": ([1, 2], [3, 4])}, "step", "loss").axes
    assert texts(axes.lines[0]) == ["a: step 1, loss 3", "a: step 2, loss 4"]
    (axes,) = plots.line_plot({"long": (range(50), range(50))}).axes
    assert axes.lines[0].get_gid() is None


def test_panels_share_series_and_the_vertical_axis():
    panels = {"CKA": {"early": ([0, 1], [0, 2]), "late": ([0, 2], [1, 2])}, "IoU": {"late": ([0.5], [-1])}}
    figure = plots.scatter_grid(panels, "difference", tips={"IoU": {"late": ["topk"]}})
    one, other = figure.axes
    assert (one.get_xlabel(), other.get_xlabel()) == ("CKA", "IoU") and one.get_ylim() == other.get_ylim()
    assert np.array_equal(one.collections[1].get_facecolor(), other.collections[0].get_facecolor())
    assert texts(other.collections[0]) == ["topk: IoU 0.5, difference -1"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["early", "late"]
    five = plots.scatter_grid({str(number): panels["CKA"] for number in range(5)})
    assert not five.legends and five.axes[5].get_legend() is not None
