"""Tables, plots and pictures of the object patches that scorers keep."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxprune.evaluate.collectors.patch_recall import ALL, ANY, LEARNED, UNLEARNED, View
from jaxprune.report import Section, plots, spread
from jaxprune.report.pictures.layout import tile, upscale
from jaxprune.report.pictures.marks import mask_outline, mask_patches
from jaxprune.report.pictures.text import label
from jaxprune.report.scorer_names import short_names

SHOWN, CLASSES = 6, 6  # images and classes in the report's pictures and plots
_HALF = 4.2  # inches: width of plots shown side by side

Rows = Sequence[Mapping[str, Any]]


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


def summary_text(rows: Rows) -> str:
    """Formats the rows of one group and keep rate for a terminal."""
    width = max(len(row["scorer"]) for row in rows)
    first = rows[0]
    lines = [
        f"recall of {first['class']} at keep rate {first['keep rate']} (random: {first['chance']:.1%}); "
        + spread.meaning(spread.STANDARD_ERROR, first["images"])
    ]
    for row in sorted(rows, key=lambda row: -row["macro"]):
        half = "" if np.isnan(row["error"]) else f" ± {row['error']:.1%}"
        more = f"of all patches {row['micro']:.1%}, precision {row['precision']:.1%}"
        lines.append(f"  {row['scorer']:<{width}}  {row['macro']:6.1%}{half}   {more}")
    return "\n".join(lines)


def finding(rows: Rows) -> str:
    """Returns a sentence on the rows of one group and keep rate: the best scorer, compared with chance."""
    best = max(rows, key=lambda row: row["macro"])
    return (
        f"{best['scorer'].partition(':')[0]} keeps {best['macro']:.0%} of the object patches at keep rate "
        f"{best['keep rate']:g}, random {best['chance']:.0%}"
    )


def curves(rows: Rows, group: str, title: str = "") -> Any:
    """Draws recall against the keep rate, one line per scorer; bands are ±2 standard errors."""
    names, lines = short_names(dict.fromkeys(row["scorer"] for row in rows)), {}
    for row in rows:
        if row["class"] == group:
            lines.setdefault(names[row["scorer"]], []).append(row)
    rates = lambda own: [row["keep rate"] for row in own]
    series = {text: (rates(own), [row["macro"] for row in own]) for text, own in lines.items()}
    edge = lambda own, sign: np.clip([row["macro"] + sign * 2 * row["error"] for row in own], 0, 1)
    bands = {text: (edge(own, -1), edge(own, 1)) for text, own in lines.items()}
    own = next(iter(lines.values()))
    chance = {"chance": (rates(own), [row["chance"] for row in own])}
    options = {"bands": bands, "reference": chance, "shares": True}
    return plots.line_plot(series, "keep rate", "recall of object patches", title, **options)


def bars(rows: Rows, group: str) -> Any:
    """Draws the recall of one class at one keep rate, one bar per scorer, with ±2 standard errors (LTRP, Fig. 9)."""
    names = short_names(dict.fromkeys(row["scorer"] for row in rows))
    own = {names[row["scorer"]]: row for row in rows if row["class"] == group}
    recall = {text: row["macro"] for text, row in own.items()}
    errors = {text: 2 * row["error"] for text, row in own.items() if np.isfinite(row["error"])}
    first = next(iter(own.values()))
    title = f"{group}: {first['images']} images, {first['patches']} patches"
    chance = {"chance": first["chance"]}
    return plots.bar_plot(
        recall, errors, chance, xlabel="recall", title=title, spec=".2f", limits=(0.0, 1.0), width=_HALF
    )


def kept_pictures(
    view: View, ranks: Mapping[str, np.ndarray], grid: tuple[int, ...], keep_rate: float, count: int = SHOWN
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
    rows: Rows,
    view: View,
    ranks: Mapping[str, np.ndarray],
    grid: tuple[int, ...],
    keep_rate: float,
) -> None:
    """Adds recall and pictures to a section of a report.

    Args:
      section: the section.
      rows: what `recall_table` returned.
      view: the images.
      ranks: by scorer; see `Ranks`.
      grid: of the patches, (rows, columns).
      keep_rate: the keep rate of tables and pictures, one of those in the rows.
    """
    groups = list(dict.fromkeys(row["class"] for row in rows))
    whole = [group for group in groups if group in (ANY, ALL, LEARNED, UNLEARNED)]
    chosen = [row for row in rows if row["keep rate"] == keep_rate]
    shares = ("recall, mean of images", "recall of all patches", "precision")
    section.table(
        [
            {
                "scorer": row["scorer"],
                "classes": row["class"],
                "recall, mean of images": (row["macro"], row["error"]),
                "recall of all patches": row["micro"],
                "precision": row["precision"],
                "precision at random": row["chance precision"],
                "images": row["images"],
                "patches": row["patches"],
            }
            for row in chosen
            if row["class"] in whole
        ],
        caption=f"Recall and precision at keep rate {keep_rate}; recall at random is {chosen[0]['chance']:.1%}. "
        f"{spread.meaning(spread.STANDARD_ERROR)}.",
        highlight=dict.fromkeys(shares, "max"),
        formats=dict.fromkeys((*shares, "precision at random"), ".1%"),
    )
    for group in whole:
        own = [row for row in chosen if row["class"] == group]
        section.figure(
            curves(rows, group),
            f"{group.capitalize()}: {finding(own)} ({own[0]['images']} images, {own[0]['patches']} patches). "
            "Bands are ±2 standard errors of the mean over images; the dashed line is chance.",
        )
    section.figure(
        kept_pictures(view, ranks, grid, keep_rate),
        f"The patches that each scorer keeps at keep rate {keep_rate}; dropped patches are grey with a cross. "
        f"Objects are "
        "outlined in the first column.",
    )
    single = [group for group in groups if group not in whole]
    if len(single) > 1:
        section.gallery([bars(chosen, name) for name in single[:CLASSES]], columns=2)
        section.text(
            "Recall of the most frequent classes, on the same axis from 0 to 1: error bars are ±2 standard errors "
            "of the mean over images, clipped to [0, 1]; the dashed line is chance."
        )
        by_class = {name: {r["scorer"]: r["macro"] for r in chosen if r["class"] == name} for name in single}
        first = {row["class"]: row for row in reversed(chosen)}
        counted = lambda name: {key: first[name][key] for key in ("images", "patches")}
        section.table(
            [{"class": name, **counted(name), **by_class[name]} for name in single],
            caption=f"Recall by class at keep rate {keep_rate}, mean over the images with that class; "
            f"at random {chosen[0]['chance']:.1%}.",
            formats=dict.fromkeys(ranks, ".1%"),
        )
