"""Plots in one style, each returned as a matplotlib `Figure` that does not depend on pyplot or a window system.

Each is imported when it is first used: matplotlib takes its time, and most runs draw only at their end.
"""

import importlib
from typing import Any

_MODULES = {
    "bar_plot": "bars",
    "confusion_matrix": "matrix",
    "cut_note": "shares",
    "front_note": "pareto",
    "line_plot": "lines",
    "map_grid": "maps",
    "matrix_plot": "matrix",
    "moving_average": "lines",
    "pareto_front": "pareto",
    "save": "files",
    "scatter_grid": "grids",
    "scatter_plot": "scatter",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
