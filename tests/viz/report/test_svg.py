"""Plots are embedded as SVG with the colours of the theme, or as bitmaps if they are large."""

import re

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


def test_plots_on_one_page_share_no_ids():
    report = Report("r")
    section = report.section("s")
    for _ in range(3):
        section.figure(plots.scatter_plot({"a": ([0, 1], [0, 1]), "b": ([0, 2], [1, 3])}, log_x=False))
    # Its id is that of the first plot's third element, if ids of plots and of sections were made alike.
    section.section("Figure 2").figure(plots.line_plot({"a": ([0, 1], [0, 1])}))
    section.section("Figure 1")
    ids = re.findall(r'\bid="([^"]+)"', report.render())
    assert len(ids) > 8 and len(ids) == len(set(ids))


def test_a_plot_fills_a_report():
    svg = Report("r").section("s").figure(plots.line_plot({"a": ([0, 1], [0, 1])})).render()
    (width,) = re.findall(r"max-width:(\d+)px", svg)
    assert int(width) >= 888  # 62 rem without margins and padding
