"""Text labels next to points, placed so that they do not overlap."""

import itertools

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jaxprune.report.plots.style import INK, MUTED

_SIDES, _LEVELS = {1: "left", 0: "center", -1: "right"}, {1: "bottom", 0: "center", -1: "top"}


def place_labels(figure: Figure, axes: Axes, texts: list[tuple[float, float, str]], points: np.ndarray) -> None:
    """Writes each text near its point, at the first position inside the axes that overlaps no other text and no point.

    If there is no such position, the one with the fewest overlaps is used. A text that is not directly next to its
    point is connected to it by a thin line.

    Args:
      figure: the figure that contains the axes.
      axes: the axes to write in.
      texts: (x, y, text) of each label.
      points: (n, 2) coordinates that labels must not cover.
    """
    if not texts:
        return
    figure.draw_without_rendering()  # computes the layout, on which pixel coordinates depend
    renderer, occupied = FigureCanvasAgg(figure).get_renderer(), axes.transData.transform(points)
    frame, boxes = axes.get_window_extent(renderer), []
    turns = ((1, 0), (-1, 0), (0, 1), (0, -1), (0.7, 0.7), (0.7, -0.7), (-0.7, 0.7), (-0.7, -0.7))
    for x, y, content in texts:
        text = axes.annotate(content, (x, y), (0, 0), textcoords="offset points", fontsize=8.5, color=INK)
        choices = []
        for distance, (dx, dy) in itertools.product((7, 16, 26, 38), turns):
            text.set(ha=_SIDES[np.sign(dx)], va=_LEVELS[np.sign(dy)], position=(distance * dx, distance * dy))
            box = text.get_window_extent(renderer).padded(1.5)
            padded_box = box.padded(2.5)  # leaves room for the point's marker
            clashes = sum(map(box.overlaps, boxes)) + sum(padded_box.contains(*point) for point in occupied)
            clashes += 2 * (box.x0 < frame.x0 or box.x1 > frame.x1 or box.y0 < frame.y0 or box.y1 > frame.y1)
            choices.append((clashes, len(choices), distance, dx, dy, box))
            if not clashes:
                break
        _, _, distance, dx, dy, box = min(choices)
        text.set(ha=_SIDES[np.sign(dx)], va=_LEVELS[np.sign(dy)], position=(distance * dx, distance * dy))
        boxes.append(box)
        if distance > 7:
            arrow = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
            axes.annotate("", (x, y), (distance * dx, distance * dy), textcoords="offset points", arrowprops=arrow)
