"""Axes of shares of 1, such as accuracy: from 0 to 1, or visibly cut where all values are close together."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxprune.report.plots.style import MUTED

NARROW = 0.25  # values that span less than this share of the axis are shown on a part of it
LEAST = 0.1  # of the axis is shown at least, so that noise does not look like a difference

_CUT = "cut"  # gid of the marks of a cut axis, by which `cut_note` finds them


def limit_shares(axes: Axes, values: ArrayLike) -> None:
    """Makes the vertical axis one of shares: from 0 to 1, or a part of that with a mark at its end.

    Args:
      axes: the axes, with everything drawn.
      values: all shares that are drawn; NaN is ignored.
    """
    heights = np.asarray(values, float)
    heights = heights[np.isfinite(heights)]
    low, high = (heights.min(), heights.max()) if heights.size else (0.0, 1.0)
    pad = max(0.2 * (high - low), (LEAST - (high - low)) / 2)
    if high - low >= NARROW or low - pad <= 0:
        axes.set_ylim(-0.02, 1.02)  # lines at 0 and at 1 are visible over their whole width
        return
    axes.set_ylim(low - pad, min(high + pad, 1.02))
    axes.spines["left"].set_visible(True)
    axes.tick_params(axis="y", pad=9)  # room for the marks
    for end in (0.0, 1.0) if high + pad < 1 else (0.0,):
        for shift in (0.02, 0.045):
            y = abs(end - shift)
            place: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, "zorder": 5, "gid": _CUT}
            axes.plot((-0.012, 0.012), (y - 0.012, y + 0.012), color=MUTED, linewidth=1.2, **place)


def cut_note(figure: Figure) -> str:
    """Returns the sentence of a caption that says which part of an axis of shares is shown; empty if all of it is."""
    for axes in figure.axes:
        if any(line.get_gid() == _CUT for line in axes.lines):
            low, high = axes.get_ylim()
            return f" The vertical axis is cut: it shows {low:.2f} to {min(high, 1.0):.2f}, not 0 to 1."
    return ""
