"""Plots are embedded as SVG with the colours of the theme, or as bitmaps if they are large."""

import re

import numpy as np
import pytest
from parsed_page import Page

from jaxprune.report import Report, plots
from jaxprune.report.plots.style import INK, PAPER


@pytest.mark.slow
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


def test_points_have_labels_and_one_of_them_is_in_the_order_of_the_tabulator_key():
    report = Report("r")
    series = {"a <b>": ([1, 2, 3], [0.1, 0.2, float("nan")]), "c": ([2], [0.5])}
    report.section("s").figure(plots.scatter_plot(series, "x", "y"), "few").figure(plots.line_plot(series, "x", "y"))
    page = Page(report.render())
    points = [use for use in page.all("use") if use.get("class") == "point"]
    labels = ["a <b>: x 1, y 0.1", "a <b>: x 2, y 0.2", "c: x 2, y 0.5"]
    assert [point["aria-label"] for point in points] == 2 * labels
    assert [point["tabindex"] for point in points] == 2 * ["0", "-1", "-1"]
    assert {svg["role"] for svg in page.all("svg")} == {"group"} and not page.values("data-texts")


def test_a_plot_without_points_is_an_image():
    section = Report("r").section("s").figure(plots.line_plot({"a": (range(50), range(50))}))
    assert 'role="img"' in section.render() and 'class="point"' not in section.render()
