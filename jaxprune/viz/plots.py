"""Plots in one style. Each function returns a matplotlib `Figure`; no window system and no global state are touched.

Colours can be told apart by colour-blind readers (Okabe and Ito's set, darkened where thin lines need it) and hold on
white and on dark paper. The four neutral ones are exact: a report swaps them for those of the reader's theme.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Int, Real
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import ArrayLike

INK, MUTED, LINE, PAPER = "#1f2933", "#5b6775", "#dde3e8", "#fefefe"
PALETTE = ("#0a78b8", "#d1660f", "#0f9372", "#c0508f", "#d39a09", "#3fa3d8", "#7d5fc0", "#7a8591")
DASHES = ("-", "--", ":")
SIZE = (5.4, 3.1)  # inches; readable when a phone shows it at three fifths
Direction = Literal["min", "max"]
Series = Mapping[str, tuple[ArrayLike, ArrayLike]]

_SIDES, _LEVELS = {1: "left", 0: "center", -1: "right"}, {1: "bottom", 0: "center", -1: "top"}


def _axes(title: str, xlabel: str, ylabel: str, size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained", facecolor=PAPER)
    axes = figure.add_subplot(facecolor=PAPER)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_xlabel(xlabel, fontsize=10, color=MUTED)
    axes.set_ylabel(ylabel, fontsize=10, color=MUTED)
    axes.tick_params(colors=MUTED, labelsize=9, length=0)
    axes.grid(color=LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(LINE)
    return figure, axes


def _style(index: int) -> dict[str, Any]:
    """Returns the colour and dash of the index-th series; 24 differ."""
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": DASHES[index // len(PALETTE) % len(DASHES)]}


def _legend(figure: Figure, axes: Axes, count: int) -> None:
    if count < 2:
        return
    options = {"frameon": False, "fontsize": 9, "labelcolor": INK, "handlelength": 1.6}
    if count > 5:
        figure.legend(loc="outside right upper", **options)
    else:
        axes.legend(loc="best", **options)


def _number(value: float, _: int | None = None) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def moving_average(y: Real[np.ndarray, " n"], window: int) -> Real[np.ndarray, " n"]:
    """Returns the centred mean over `window` points; near the ends, over those that there are."""
    kernel = np.ones(min(window, len(y)))
    total, count = (np.convolve(values, kernel, mode="same") for values in (y, np.ones(len(y))))
    return total / count


def line_plot(
    series: Series,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    *,
    log_y: bool = False,
    smooth: int | None = None,
    bands: Series | None = None,
) -> Figure:
    """Draws lines over a common axis.

    Args:
      series: {name: (x, y)}.
      log_y: whether the vertical axis is logarithmic.
      smooth: width in points of a moving average; the raw line stays behind it, faint.
      bands: {name of a series: (low, high)}, an interval at each of its x.
    """
    figure, axes = _axes(title, xlabel, ylabel)
    for index, (name, (x, y)) in enumerate(series.items()):
        style, x, y = _style(index), np.asarray(x), np.asarray(y, float)
        marker = "o" if len(x) <= 12 else None
        if smooth and len(x) > smooth:
            axes.plot(x, y, color=style["color"], linewidth=0.7, alpha=0.3)
            y = moving_average(y, smooth)
        axes.plot(x, y, label=name, linewidth=1.8, marker=marker, markersize=4, **style)
        if bands and name in bands:
            axes.fill_between(x, *np.asarray(bands[name], float), color=style["color"], alpha=0.15, linewidth=0)
    if log_y:
        axes.set_yscale("log")
        axes.grid(which="minor", axis="y", color=LINE, linewidth=0.3)
        axes.tick_params(which="minor", colors=MUTED, labelsize=8, length=0)
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(_number))
    axes.xaxis.set_major_formatter(FuncFormatter(_number))
    axes.margins(x=0.02)
    _legend(figure, axes, len(series))
    return figure


def bar_plot(
    values: Mapping[str, float],
    errors: Mapping[str, float] | None = None,
    reference: Mapping[str, float] | None = None,
    *,
    xlabel: str = "",
    title: str = "",
    spec: str = ".3g",
) -> Figure:
    """Draws horizontal bars from top to bottom, each with its number.

    Args:
      values: {name: length of its bar}.
      errors: {name: half width of its interval}.
      reference: {name: value} of levels to compare with (dense, chance), drawn across as dashed lines.
      spec: the format specification of the numbers.
    """
    figure, axes = _axes(title, xlabel, "", (SIZE[0], 0.9 + 0.3 * len(values)))
    names, lengths = list(values), np.array(list(values.values()), float)
    half = np.array([(errors or {}).get(name, 0.0) for name in names])
    rows = np.arange(len(names))
    axes.barh(rows, lengths, height=0.68, color=PALETTE[0])
    axes.errorbar(
        lengths, rows, xerr=np.where(half > 0, half, np.nan), fmt="none", ecolor=INK, elinewidth=1, capsize=2.5
    )
    longest = np.nanmax(np.abs([*lengths, *(reference or {}).values()]), initial=0.0)
    for row, length, reach in zip(rows, lengths, half, strict=True):
        if np.isfinite(length):
            inside = length - reach > 0.2 * longest  # there, no line of a reference can cross it
            end = length - reach if inside else max(length, 0.0) + reach
            text = axes.annotate(f"{length:{spec}}", (end, row), (-4 if inside else 4, 0), textcoords="offset points")
            text.set(va="center", ha="right" if inside else "left", fontsize=9, color="#ffffff" if inside else INK)
    for index, (name, level) in enumerate((reference or {}).items()):
        axes.axvline(level, color=PALETTE[1 + index], linewidth=1.4, linestyle="--", label=f"{name} ({level:{spec}})")
    axes.set_yticks(rows, names, color=INK)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(FuncFormatter(_number))
    if reference:
        place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.2, "ncols": len(reference)}
        axes.legend(**place, frameon=False, fontsize=9, labelcolor=INK)
    return figure


def pareto_front(
    x: Real[np.ndarray, " n"], y: Real[np.ndarray, " n"], better: tuple[Direction, Direction] = ("min", "max")
) -> Int[np.ndarray, " front"]:
    """Returns the indices of the points that no other beats in both directions, by increasing x.

    Of points that coincide, the first is listed.
    """
    signs = {"min": 1.0, "max": -1.0}
    cost_x, cost_y = np.asarray(x) * signs[better[0]], np.asarray(y) * signs[better[1]]
    front, best = [], np.inf
    for index in np.lexsort((cost_y, cost_x)):
        if cost_y[index] < best:
            front.append(index)
            best = cost_y[index]
    return np.array(front if better[0] == "min" else front[::-1], int)


def scatter_plot(
    series: Series,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    *,
    labels: Mapping[str, Sequence[str]] | None = None,
    pareto: tuple[Direction, Direction] | None = None,
    log_x: bool = False,
) -> Figure:
    """Draws points, one colour and mark a series; the points of a series are joined by a thin line.

    Args:
      series: {name: (x, y)}; a series of one point carries its name beside it instead of in the legend.
      labels: {name of a series: a text for each of its points}.
      pareto: which way is better along x and y, such as ("min", "max") for cost and accuracy: draws the front.
      log_x: whether the horizontal axis is logarithmic.
    """
    figure, axes = _axes(title, xlabel, ylabel, (SIZE[0], SIZE[1] + 0.5))
    if log_x:
        axes.set_xscale("log")
    marks, texts, in_legend = "osD^vPX*", [], 0
    points = {name: (np.atleast_1d(x).astype(float), np.atleast_1d(y).astype(float)) for name, (x, y) in series.items()}
    if pareto is not None:
        every_x, every_y = (np.concatenate([point[axis] for point in points.values()]) for axis in (0, 1))
        front = pareto_front(every_x, every_y, pareto)
        steps = "steps-post" if pareto[0] == "min" else "steps-pre"
        axes.plot(every_x[front], every_y[front], color=MUTED, linewidth=1.6, alpha=0.45, drawstyle=steps, zorder=1)
    for index, (name, (x, y)) in enumerate(points.items()):
        colour, mark = PALETTE[index % len(PALETTE)], marks[(index + index // len(marks)) % len(marks)]
        alone = len(x) == 1
        axes.plot(x, y, color=colour, linewidth=0.9, alpha=0.55, zorder=2)
        axes.scatter(x, y, s=30, color=colour, marker=mark, zorder=3, label=None if alone else name, linewidths=0)
        in_legend += not alone
        texts += [
            (a, b, text) for a, b, text in zip(x, y, (labels or {}).get(name, [name] if alone else []), strict=False)
        ]
    axes.xaxis.set_major_formatter(FuncFormatter(_number))
    axes.yaxis.set_major_formatter(FuncFormatter(_number))
    axes.margins(0.08)
    _legend(figure, axes, in_legend)
    _place_labels(figure, axes, texts, np.concatenate([np.stack(point, 1) for point in points.values()]))
    return figure


def _place_labels(figure: Figure, axes: Axes, texts: list[tuple[float, float, str]], points: np.ndarray) -> None:
    """Writes each text near its point, at the first place where it covers no other text and no point.

    Where there is room only further off, a thin line leads to the point.
    """
    if not texts:
        return
    figure.draw_without_rendering()  # settles the layout, and with it what a pixel is
    renderer, occupied = FigureCanvasAgg(figure).get_renderer(), axes.transData.transform(points)
    frame, taken = axes.get_window_extent(renderer), []
    turns = ((1, 0), (-1, 0), (0, 1), (0, -1), (0.7, 0.7), (0.7, -0.7), (-0.7, 0.7), (-0.7, -0.7))
    for x, y, content in texts:
        text = axes.annotate(content, (x, y), (0, 0), textcoords="offset points", fontsize=8.5, color=INK)
        choices = []
        for distance, (dx, dy) in itertools.product((7, 16, 26, 38), turns):
            text.set(ha=_SIDES[np.sign(dx)], va=_LEVELS[np.sign(dy)], position=(distance * dx, distance * dy))
            box = text.get_window_extent(renderer).padded(1.5)
            near = box.padded(2.5)  # a mark has a size
            clashes = sum(box.overlaps(other) for other in taken) + sum(near.contains(*point) for point in occupied)
            clashes += 2 * (box.x0 < frame.x0 or box.x1 > frame.x1 or box.y0 < frame.y0 or box.y1 > frame.y1)
            choices.append((clashes, len(choices), distance, dx, dy, box))
            if not clashes:
                break
        _, _, distance, dx, dy, box = min(choices)
        text.set(ha=_SIDES[np.sign(dx)], va=_LEVELS[np.sign(dy)], position=(distance * dx, distance * dy))
        taken.append(box)
        if distance > 7:
            arrow = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
            axes.annotate("", (x, y), (distance * dx, distance * dy), textcoords="offset points", arrowprops=arrow)


def confusion_matrix(
    matrix: Real[np.ndarray, "c c"], class_names: Sequence[str], title: str = "", max_labels: int = 20
) -> Figure:
    """Draws counts of (true class, predicted class), each row coloured by its share of the row's total.

    Counts and names are written up to `max_labels` classes.
    """
    matrix = np.asarray(matrix)
    count = len(matrix)
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side = min(6.0, 2.0 + 0.36 * count)
    figure, axes = _axes(title, "predicted", "true", (side, side - 0.3))
    # More ink, not another colour: the cells let the paper through, be it light or dark.
    cells = np.dstack([np.broadcast_to(to_rgb(PALETTE[0]), (count, count, 3)), share])
    axes.imshow(cells, interpolation="none")
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    if count > max_labels:
        return figure
    for between in np.arange(0.5, count - 1):
        axes.axvline(between, color=LINE, linewidth=0.6, zorder=0)
        axes.axhline(between, color=LINE, linewidth=0.6, zorder=0)
    axes.set_xticks(range(count), class_names, rotation=45, ha="right", rotation_mode="anchor", color=INK)
    axes.set_yticks(range(count), class_names, color=INK)
    for (row, column), value in np.ndenumerate(matrix):
        if value:
            colour = "#ffffff" if share[row, column] > 0.5 else INK
            axes.text(column, row, _number(value), ha="center", va="center", fontsize=8, color=colour)
    return figure
