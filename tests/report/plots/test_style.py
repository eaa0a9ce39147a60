"""Plots do not depend on pyplot and its global state."""

import sys

from draw_plot import draw

from jaxprune.report import plots


def test_pyplot_is_never_imported():
    draw(plots.line_plot({"a": ([0, 1], [0, 1])}))
    assert "matplotlib.pyplot" not in sys.modules
