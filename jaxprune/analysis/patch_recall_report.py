"""Tables, plots and pictures of the patches of objects that scorers keep."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxprune.analysis.patch_recall import ALL, LEARNED, UNLEARNED, View
from jaxprune.viz import plots
from jaxprune.viz.pictures.layout import tile, upscale
from jaxprune.viz.pictures.marks import mask_outline, mask_patches
from jaxprune.viz.pictures.text import label
from jaxprune.viz.report import Section

SHOWN, CLASSES = 6, 6  # images and classes in the report's pictures and plots

Rows = Sequence[Mapping[str, Any]]


def summary_text(rows: Rows) -> str:
    """Lays the rows of one group and keep rate out for a terminal."""
    width = max(len(row["scorer"]) for row in rows)
    first = rows[0]
    lines = [f"recall of {first['class']} at keep rate {first['keep rate']}, {first['images']} images"]
    for row in sorted(rows, key=lambda row: -row["macro"]):
        lines.append(f"  {row['scorer']:<{width}}  {row['macro']:6.1%} ± {row['error']:.1%}   micro {row['micro']:.1%}")
    return "\n".join(lines)


def curves(rows: Rows, group: str, title: str = "") -> Any:
    """Draws recall against the keep rate, a line each scorer; the band is two standard errors either way."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["class"] == group:
            lines.setdefault(row["scorer"], []).append(row)
    series = {text: ([r["keep rate"] for r in own], [r["macro"] for r in own]) for text, own in lines.items()}
    bands = {
        text: ([r["macro"] - 2 * r["error"] for r in own], [r["macro"] + 2 * r["error"] for r in own])
        for text, own in lines.items()
    }
    return plots.line_plot(series, "keep rate", "recall of object patches", title, bands=bands)


def bars(rows: Rows, group: str) -> Any:
    """Draws the recall of one class at one keep rate, a bar each scorer, with two standard errors (LTRP, Fig. 9)."""
    own = {row["scorer"]: row for row in rows if row["class"] == group}
    recall = {text: row["macro"] for text, row in own.items()}
    errors = {text: 2 * row["error"] for text, row in own.items() if np.isfinite(row["error"])}
    title = f"{group}, {next(iter(own.values()))['images']} images"
    return plots.bar_plot(recall, errors, xlabel="recall", title=title, spec=".2f")


def kept_pictures(
    view: View, ranks: Mapping[str, np.ndarray], grid: tuple[int, int], keep_rate: float, count: int = SHOWN
) -> np.ndarray:
    """Draws images in rows: with their regions outlined, then what each scorer keeps of them (LTRP, Fig. 11)."""
    cells = []
    for index in range(min(count, len(view.images))):
        image = upscale(view.images[index])
        factor = image.shape[0] // view.images.shape[1]
        outlined = image
        for pixels in view.regions[index].values():
            outlined = mask_outline(outlined, pixels.repeat(factor, 0).repeat(factor, 1))
        cells.append(label(outlined, ", ".join(view.regions[index]) or "nothing"))
        for text, places in ranks.items():
            dropped = places[index] >= int(places.shape[1] * keep_rate)
            cells.append(label(mask_patches(image, dropped, grid), text.partition(":")[0]))
    return tile(cells, 1 + len(ranks))


def describe(
    section: Section,
    rows: Rows,
    view: View,
    ranks: Mapping[str, np.ndarray],
    grid: tuple[int, int],
    keep_rate: float,
) -> None:
    """Adds recall and pictures to a section of a report.

    Args:
      section: the section.
      rows: what `recall_table` returned.
      view: the images.
      ranks: by scorer; see `Ranks`.
      grid: of the patches, (rows, columns).
      keep_rate: one of those of the rows, of the tables and pictures.
    """
    groups = list(dict.fromkeys(row["class"] for row in rows))
    whole = [group for group in groups if group in (ALL, LEARNED, UNLEARNED)]
    chosen = [row for row in rows if row["keep rate"] == keep_rate]
    section.table(
        [
            {
                "scorer": row["scorer"],
                "classes": row["class"],
                "recall, mean of images": (row["macro"], row["error"]),
                "recall of all patches": row["micro"],
                "images": row["images"],
            }
            for row in chosen
            if row["class"] in whole
        ],
        caption=f"Recall at keep rate {keep_rate}, ± standard error.",
        highlight={"recall, mean of images": "max", "recall of all patches": "max"},
        formats={"recall, mean of images": ".1%", "recall of all patches": ".1%"},
    )
    for group in whole:
        section.figure(curves(rows, group), f"Recall of {group}; the band is two standard errors.")
    section.figure(kept_pictures(view, ranks, grid, keep_rate), f"What each scorer keeps at keep rate {keep_rate}.")
    single = [group for group in groups if group not in whole]
    if len(single) > 1:
        section.gallery([bars(chosen, name) for name in single[:CLASSES]], columns=2)
        by_class = {name: {r["scorer"]: r["macro"] for r in chosen if r["class"] == name} for name in single}
        images = {row["class"]: row["images"] for row in chosen}
        section.table(
            [{"class": name, "images": images[name], **by_class[name]} for name in single],
            caption=f"Recall by class at keep rate {keep_rate}, mean of the images that have it.",
            formats=dict.fromkeys(ranks, ".1%"),
        )
