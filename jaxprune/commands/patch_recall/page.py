"""Tables, plots and pictures of the object patches that scorers keep."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxprune.evaluate.collectors.patch_recall import ALL, ANY, LEARNED, UNLEARNED, RecallRow, View
from jaxprune.report import Section, findings, plots, spread
from jaxprune.report.pictures.layout import tile, upscale
from jaxprune.report.pictures.marks import mask_outline, mask_patches
from jaxprune.report.pictures.text import label
from jaxprune.report.scorer_names import short_names
from jaxprune.report.table import Table, column

DRAWN, CLASSES = 6, 6  # images and classes in the report's pictures and plots
_HALF = 4.2  # inches: width of plots shown side by side


@dataclasses.dataclass(frozen=True)
class ClassRecall:
    """The mean recall of a class over its images, by scorer."""

    name: str = column("class")
    images: int = column("images")
    patches: int = column("patches")
    recall: Mapping[str, float] = column(format=".1%")


def definition(min_area: float = 0.0, max_area: float = 1.0) -> str:
    """Returns a description of the metrics.

    Args:
      min_area, max_area: bounds on the regions; see `patch_recall.view`.
    """
    limits = ""
    if min_area > 0 or max_area < 1:
        limits = (
            f" Only regions that cover {min_area:.1%} to {max_area:.1%} of the image count; the objects of a class in "
            "an image form one region, and all other patches are background."
        )
    return (
        "A patch belongs to a class if at least one of its pixels does. Recall is the share of these patches that are "
        f"kept; `{ANY}` counts each patch once, `{ALL}` once for each class on it. Precision is the share of "
        "the kept patches that belong to one of the classes. Images without a region of the classes are left out. "
        f"The expected recall of random patches is the keep rate.{limits}"
    )


def summary_text(rows: Sequence[RecallRow]) -> str:
    """Formats the rows of one group and keep rate for a terminal."""
    width = max(len(row.scorer) for row in rows)
    first = rows[0]
    lines = [
        f"recall of {first.group} at keep rate {first.keep_rate} (random: {first.chance:.1%}); "
        + spread.meaning(spread.STANDARD_ERROR, first.images)
    ]
    for row in sorted(rows, key=lambda row: -row.macro.mean):
        half = "" if np.isnan(row.macro.std) else f" ± {row.macro.std:.1%}"
        details = f"of all patches {row.micro:.1%}, precision {row.precision:.1%}"
        lines.append(f"  {row.scorer:<{width}}  {row.macro.mean:6.1%}{half}   {details}")
    return "\n".join(lines)


def finding(rows: Sequence[RecallRow]) -> str:
    """Returns a sentence on the rows of one group and keep rate: the best scorer, if one stands out, and chance."""
    names = short_names(dict.fromkeys(row.scorer for row in rows))
    recall = {names[row.scorer]: row.interval for row in rows}
    sentence = findings.finding(recall, f"recall of object patches at keep rate {rows[0].keep_rate:g}", of="scorers")
    return f"{sentence}; chance is {rows[0].chance:.1%}"


def curves(rows: Sequence[RecallRow], group: str, title: str = "") -> Any:
    """Draws recall against the keep rate, one line per scorer; bands are ±2 standard errors."""
    names = short_names(dict.fromkeys(row.scorer for row in rows))
    lines: dict[str, list[RecallRow]] = {}
    for row in rows:
        if row.group == group:
            lines.setdefault(names[row.scorer], []).append(row)
    rates = lambda line: [row.keep_rate for row in line]
    series = {name: (rates(line), [row.macro.mean for row in line]) for name, line in lines.items()}
    edge = lambda line, sign: np.clip([row.macro.mean + sign * 2 * row.macro.std for row in line], 0, 1)
    bands = {name: (edge(line, -1), edge(line, 1)) for name, line in lines.items()}
    line = next(iter(lines.values()))
    chance = {"chance": (rates(line), [row.chance for row in line])}
    options = {"bands": bands, "reference": chance, "shares": True}
    return plots.line_plot(series, "keep rate", "recall of object patches", title, **options)


def bars(rows: Sequence[RecallRow], group: str) -> Any:
    """Draws the recall of one class at one keep rate, one bar per scorer, with ±2 standard errors (LTRP, Fig. 9)."""
    names = short_names(dict.fromkeys(row.scorer for row in rows))
    by_name = {names[row.scorer]: row for row in rows if row.group == group}
    recall = {name: row.macro.mean for name, row in by_name.items()}
    errors = {name: 2 * row.macro.std for name, row in by_name.items() if np.isfinite(row.macro.std)}
    first = next(iter(by_name.values()))
    title = f"{group}: {first.images} images, {first.patches} patches"
    options = {"xlabel": "recall", "title": title, "spec": ".2f", "limits": (0.0, 1.0), "width": _HALF}
    return plots.bar_plot(recall, errors, {"chance": first.chance}, **options)


def kept_pictures(
    view: View, ranks: Mapping[str, np.ndarray], grid: tuple[int, ...], keep_rate: float, count: int = DRAWN
) -> np.ndarray:
    """Draws images in rows: with outlined regions, then with the patches that each scorer keeps (LTRP, Fig. 11)."""
    cells, names = [], short_names(ranks)
    for index in range(min(count, len(view.images))):
        image = upscale(view.images[index])
        factor = image.shape[0] // view.images.shape[1]
        outlined = image
        for pixels in view.regions[index].values():
            outlined = mask_outline(outlined, pixels.repeat(factor, 0).repeat(factor, 1))
        cells.append(label(outlined, ", ".join(view.regions[index]) or "nothing"))
        for text, places in ranks.items():
            dropped = places[index] >= int(places.shape[1] * keep_rate)
            cells.append(label(mask_patches(image, dropped, (grid[0], grid[1])), names[text]))
    return tile(cells, 1 + len(ranks))


def describe(
    section: Section,
    rows: Table[RecallRow],
    view: View,
    ranks: Mapping[str, np.ndarray],
    grid: tuple[int, ...],
    keep_rate: float,
) -> None:
    """Adds recall and pictures to a section of a report.

    Args:
      rows: what `recall_table` returned.
      view: the images.
      ranks: by scorer; see `Ranks`.
      grid: of the patches, (rows, columns).
      keep_rate: the keep rate of tables and pictures, one of those in the rows.
    """
    groups = list(dict.fromkeys(row.group for row in rows))
    several = [group for group in groups if group in (ANY, ALL, LEARNED, UNLEARNED)]
    at_rate = [row for row in rows if row.keep_rate == keep_rate]
    columns = ("scorer", "macro", "micro", "precision", "chance_precision", "images", "patches")
    for group in several:
        of_group = [row for row in at_rate if row.group == group]
        section.table(
            Table(of_group).only(*columns),
            caption=f"{group.capitalize()}: recall and precision at keep rate {keep_rate}; recall at random is "
            f"{at_rate[0].chance:.1%}. {spread.meaning(spread.STANDARD_ERROR, of_group[0].images)}.",
        )
        section.figure(
            curves(rows, group),
            f"{group.capitalize()}. {finding(of_group)} ({of_group[0].images} images, {of_group[0].patches} patches). "
            "Bands are ±2 standard errors of the mean over images; the dashed line is chance.",
        )
    section.figure(
        kept_pictures(view, ranks, grid, keep_rate),
        f"The patches that each scorer keeps at keep rate {keep_rate}; dropped patches are grey with a cross. "
        "Objects are outlined in the first column.",
    )
    single = [group for group in groups if group not in several]
    if len(single) > 1:
        _by_class(section, at_rate, single)


def _by_class(section: Section, rows: Sequence[RecallRow], classes: Sequence[str]) -> None:
    section.gallery([bars(rows, name) for name in classes[:CLASSES]], columns=2)
    section.text(
        "Recall of the most frequent classes, on the same axis from 0 to 1: error bars are ±2 standard errors "
        "of the mean over images, clipped to [0, 1]; the dashed line is chance."
    )
    recall: dict[str, dict[str, float]] = {name: {} for name in classes}
    counts = {row.group: (row.images, row.patches) for row in rows}
    for row in rows:
        if row.group in recall:
            recall[row.group][row.scorer] = row.macro.mean
    section.table(
        Table(ClassRecall(name, *counts[name], by_scorer) for name, by_scorer in recall.items()),
        caption=f"Recall by class at keep rate {rows[0].keep_rate}, mean over the images with that class; "
        f"at random {rows[0].chance:.1%}.",
    )
