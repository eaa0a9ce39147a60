"""Axes of shares run from 0 to 1, or are visibly cut."""

import pytest

from jaxprune.report import plots


@pytest.mark.parametrize("low", [0.0, 0.3])
def test_shares_are_drawn_from_zero_to_one(low):
    figure = plots.line_plot({"a": ([0, 1], [low, 0.6])}, shares=True)
    bottom, top = figure.axes[0].get_ylim()
    assert -0.05 < bottom <= 0 and 1 <= top < 1.05 and not plots.cut_note(figure)


def test_a_cut_axis_is_marked_and_noted():
    for figure in (
        plots.line_plot({"a": ([0, 1], [0.8, 0.85])}, shares=True),
        plots.scatter_plot({"a": ([0, 1], [0.8, 0.85])}, shares=True),
    ):
        assert "is cut: it shows 0.78 to 0.88" in plots.cut_note(figure)


def test_chance_is_part_of_the_axis():
    lines = plots.line_plot({"a": ([0, 1], [0.8, 0.85])}, reference={"chance": ([0, 1], [0.1, 0.1])}, shares=True)
    points = plots.scatter_plot({"a": ([0, 1], [0.8, 0.85])}, reference={"chance": 0.1}, shares=True)
    for figure in (lines, points):
        assert not plots.cut_note(figure)
        assert "chance" in figure.axes[0].get_legend().get_texts()[-1].get_text()
