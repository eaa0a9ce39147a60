"""Plots are embedded as SVG with the colours of the theme, or as bitmaps if they are large."""

import numpy as np

from jaxprune.viz import plots
from jaxprune.viz.plots.style import INK, PAPER
from jaxprune.viz.report import Report


def test_large_plots_become_bitmaps():
    x = np.linspace(0, 1, 20_000)
    plot = plots.line_plot({"noise": (x, np.random.default_rng(0).random(20_000))})
    section = Report("r").section("s").figure(plot)
    assert "data:image/png" in section.render() and "<svg" not in section.render()


def test_plots_follow_the_theme():
    svg = Report("r").section("s").figure(plots.line_plot({"a": ([0, 1], [0, 1])}, title="t")).render()
    assert "var(--ink)" in svg and "var(--card)" in svg and INK not in svg and PAPER not in svg
