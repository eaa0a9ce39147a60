"""The style that all plots share: colours, axes, legends and tick labels."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxprune.text import writable

# The neutral colours: a report replaces exactly these by the colours of the reader's theme.
INK, MUTED, LINE, PAPER = "#1f2933", "#5b6775", "#dde3e8", "#fefefe"

# Okabe and Ito's colours, which colour-blind readers can distinguish, darkened where thin lines need more contrast;
# they are legible on white and on dark backgrounds.
PALETTE = ("#0a78b8", "#d1660f", "#0f9372", "#c0508f", "#d39a09", "#3fa3d8", "#7d5fc0", "#7a8591")
DASHES = ("-", "--", ":")
MARKERS = "osD^vPX*"
SIZE = (6.4, 3.3)  # inches; as wide as a report, and on a phone at about 40 % of that

Arguments = ParamSpec("Arguments")
Series = Mapping[str, tuple[ArrayLike, ArrayLike]]


def literal(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """Decorates a plot: its texts are drawn as they are; matplotlib takes what stands between two $ as a formula."""

    @functools.wraps(draw)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Figure:
        with matplotlib.rc_context({"text.parse_math": False}):
            return draw(*map(_writable, args), **_writable(kwargs))  # pyright: ignore[reportCallIssue]

    return wrapped


def _writable(values: Any) -> Any:
    """Returns nested values with texts that can be drawn."""
    if isinstance(values, str):
        return writable(values)
    if isinstance(values, Mapping):
        return {_writable(name): _writable(value) for name, value in values.items()}
    return type(values)(map(_writable, values)) if type(values) in (tuple, list) else values


def new_axes(title: str, xlabel: str, ylabel: str, size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    """Returns a new figure, created without pyplot and its global state, and its axes."""
    figure = Figure(figsize=size, layout="constrained", facecolor=PAPER)
    axes = figure.add_subplot(facecolor=PAPER)
    style_axes(axes, title, xlabel, ylabel)
    return figure, axes


def style_axes(axes: Axes, title: str = "", xlabel: str = "", ylabel: str = "") -> None:
    """Sets labels, colours, grid and frame of axes."""
    axes.set_facecolor(PAPER)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_xlabel(xlabel, fontsize=10, color=MUTED)
    axes.set_ylabel(ylabel, fontsize=10, color=MUTED)
    axes.tick_params(colors=MUTED, labelsize=9, length=0)
    axes.grid(color=LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(LINE)


def line_style(index: int) -> dict[str, Any]:
    """Returns the colour and dash of the index-th series; the first 24 are distinct."""
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": DASHES[index // len(PALETTE) % len(DASHES)]}


def point_style(index: int) -> dict[str, Any]:
    """Returns the colour and marker of the index-th series of points; the first 64 are distinct."""
    return {"color": PALETTE[index % len(PALETTE)], "marker": MARKERS[(index + index // len(MARKERS)) % len(MARKERS)]}


def add_legend(figure: Figure, axes: Axes, count: int) -> None:
    """Adds a legend unless there are fewer than two series; a long one is placed beside the axes or below them."""
    if count < 2:
        return
    options = {"frameon": False, "fontsize": 9, "labelcolor": INK, "handlelength": 1.6}
    if count > 16:
        # Beside the axes it would be cut off.
        columns = 3
        figure.set_figheight(figure.get_figheight() + 0.19 * -(-count // columns))
        figure.legend(loc="outside lower center", ncols=columns, **options)
    elif count > 5:
        figure.legend(loc="outside right upper", **options)
    else:
        axes.legend(loc="best", **options)


def format_tick(value: float, _: int | None = None) -> str:
    """Returns a tick's value as text; the signature is that of matplotlib's formatters."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
