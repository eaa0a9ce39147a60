"""Plots in one style, each returned as a matplotlib `Figure` that does not depend on pyplot or a window system."""

from jaxprune.report.plots.bars import bar_plot
from jaxprune.report.plots.files import save
from jaxprune.report.plots.lines import line_plot, moving_average
from jaxprune.report.plots.maps import map_grid
from jaxprune.report.plots.matrix import confusion_matrix, matrix_plot
from jaxprune.report.plots.pareto import front_note, pareto_front
from jaxprune.report.plots.scatter import scatter_plot
from jaxprune.report.plots.scatter_grid import scatter_grid
from jaxprune.report.plots.shares import cut_note

__all__ = [
    "bar_plot",
    "confusion_matrix",
    "cut_note",
    "front_note",
    "line_plot",
    "map_grid",
    "matrix_plot",
    "moving_average",
    "pareto_front",
    "save",
    "scatter_grid",
    "scatter_plot",
]
