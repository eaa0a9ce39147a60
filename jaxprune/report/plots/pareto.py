"""The Pareto front of a set of points."""

from typing import Any, Literal

import numpy as np
from jaxtyping import Int, Real

Direction = Literal["min", "max"]
FRONT = "front"  # the id of the line in a figure


def pareto_front(
    x: Real[np.ndarray, " n"], y: Real[np.ndarray, " n"], better: tuple[Direction, Direction] = ("min", "max")
) -> Int[np.ndarray, " front"]:
    """Returns the indices of the points that no other point dominates, by increasing x.

    Args:
      x: first coordinates.
      y: second coordinates.
      better: which direction is better along x and along y.

    Returns:
      The indices; of points that coincide, only the first is included.
    """
    signs = {"min": 1.0, "max": -1.0}
    cost_x, cost_y = np.asarray(x) * signs[better[0]], np.asarray(y) * signs[better[1]]
    front, best = [], np.inf
    for index in np.lexsort((cost_y, cost_x)):
        if cost_y[index] < best:
            front.append(index)
            best = cost_y[index]
    return np.array(front if better[0] == "min" else front[::-1], int)


def front_note(figure: Any, joined: str = "highest values measured") -> str:
    """Returns a sentence on the line that joins the Pareto front; "" where the front is one point, without a line."""
    lines = [line for axes in figure.axes for line in axes.get_lines() if line.get_gid() == FRONT]
    return f" The grey line joins the {joined} at each cost." if lines else ""
