"""Names in plots are drawn as they are: signs of formulas, and bytes that are not Unicode."""

import numpy as np
import pytest

from jaxprune.report import plots
from jaxprune.report.svg import plot_element

NAMES = ("a$b$c", "x_1$^2$\\frac{", "caf\udce9", "$$$$")
POINTS = {name: ([1.0], [number / 4]) for number, name in enumerate(NAMES)}
LINES = {name: (range(3), np.arange(3.0)) for name in NAMES}
PLOTS = {
    "bars": lambda: plots.bar_plot(dict.fromkeys(NAMES, 1.0), reference={"a$b$": 0.5}, title="$t^"),
    "confusion": lambda: plots.confusion_matrix(np.eye(4, dtype=int), NAMES),
    "lines": lambda: plots.line_plot(LINES, "$x$", "$y$"),
    "maps": lambda: plots.map_grid({name: np.eye(3) for name in NAMES}, "$l$"),
    "matrix": lambda: plots.matrix_plot(np.eye(4), NAMES),
    "scatter": lambda: plots.scatter_plot(POINTS, "$x$", "$y$", reference={"$r$": 0.5}),
    "scatter_grid": lambda: plots.scatter_grid({"$p$": POINTS}, "$y$"),
}


@pytest.mark.parametrize("name", PLOTS)
def test_names_with_signs_of_formulas_are_drawn_as_they_are(name):
    element = plot_element(PLOTS[name](), "alt", "p")
    element.encode()
    assert "<svg" in element and ("a$b$c" in element or name == "scatter_grid")
