"""Names and values of points, which a report shows while a point is hovered or focused."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxprune.report import point_texts
from jaxprune.report.plots.style import format_tick


def add_tips(artist: Any, x: Any, y: Any, names: Sequence[str], xlabel: str, ylabel: str) -> None:
    """Adds the text of each point, its name and its coordinates, to the artist that draws the points.

    Args:
      artist: a matplotlib `Line2D` with markers, or a `PathCollection`.
      x: coordinates, (n,).
      y: coordinates, (n,); points with NaN are not drawn and get no text.
      names: of the points, n.
      xlabel: what x is.
      ylabel: what y is.
    """
    texts = []
    for a, b, name in zip(np.asarray(x, float), np.asarray(y, float), names, strict=True):
        if np.isfinite(a) and np.isfinite(b):
            values = (f"{label} {format_tick(value)}".strip() for label, value in ((xlabel, a), (ylabel, b)))
            texts.append(f"{name}: {', '.join(values)}")
    artist.set_gid(point_texts.to_gid(texts))
