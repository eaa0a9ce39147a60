"""Which patches of objects do scorers keep? Recall of boxes and masks against the keep rate, overall and by class."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxprune import metrics
from jaxprune.config import Config
from jaxprune.data import images as host
from jaxprune.data.annotations import UNSEEN, Annotations, open_annotations
from jaxprune.errors import UserError, unknown
from jaxprune.tasks import setup
from jaxprune.tasks.scorers import Ready, enlarged, open_scorers, ready
from jaxprune.train.progress import progress
from jaxprune.viz import plots
from jaxprune.viz.pictures.layout import tile, upscale
from jaxprune.viz.pictures.marks import mask_outline, mask_patches
from jaxprune.viz.pictures.text import label
from jaxprune.viz.report import Report
from jaxprune.viz.table import write_csv

ALL, LEARNED, UNLEARNED = "all classes", "learned classes", "unseen classes"
SHOWN, CLASSES = 6, 6  # images and classes in the report's pictures and plots


class View(NamedTuple):
    """Images as the scorers see them, and what is where in them.

    Attributes:
      images: uint8 (n, h, w, 3).
      regions: for each image {class: bool (h, w)}.
      positive: for each image {class: bool (p,)}; a patch belongs to a class if one of its pixels does.
    """

    images: np.ndarray
    regions: list[dict[str, np.ndarray]]
    positive: list[dict[str, np.ndarray]]


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Puts `config.scorers` side by side on annotated images and adds a section to the report in `workdir`."""
    opened = enlarged(open_scorers(config), config.proposal_size)
    size, grid = opened.size, opened.grid
    options = setup.plain(config.annotations)
    if config.source == "scenes":
        options.update(num_images=config.num_images, image_size=size[0], seed=config.seed)
    source = open_annotations(config.source, **options)
    view = look(source, size, grid, limit=config.num_images, crop_pct=config.crop_pct)
    ranks = rank(ready(opened.scorers, config), view.images, config)
    groups = class_groups(view.positive, config.unseen)
    rows = recall_table(ranks, view.positive, groups, tuple(config.keep_rates))
    workdir.mkdir(parents=True, exist_ok=True)
    write_csv(workdir / "patch_recall.csv", rows)
    _describe(config, workdir, rows, view, ranks, grid, f"{source.name}: {len(view.images)} images")
    at = _nearest(config.keep_rates, config.keep_rate)
    whole = {row["scorer"]: row for row in rows if row["class"] == ALL and row["keep rate"] == at}
    print(summary_text(list(whole.values())))
    best = max(whole.values(), key=lambda row: row["macro"])
    return {"images": len(view.images), "keep_rate": at, "best": best["scorer"], "recall": best["macro"]}


def rank(run: Ready, images: np.ndarray, config: Config) -> dict[str, np.ndarray]:
    """Returns each scorer's order of keeping: for each patch its place in it, 0 = kept first, int (n, p)."""
    places: dict[str, list[np.ndarray]] = {text: [] for text in config.scorers}
    starts = range(0, len(images), config.batch_size)
    with progress("scoring", len(starts)) as bar:
        for start in starts:
            batch = images[start : start + config.batch_size]
            # The last batch is filled up: one shape, one program.
            filled = np.resize(batch, (config.batch_size, *batch.shape[1:]))
            key = jax.random.fold_in(jax.random.key(config.seed), start)
            for text, scores in run.scores(run.arrays, jnp.asarray(filled), key).items():
                order = np.argsort(-np.asarray(scores)[: len(batch)], axis=1, kind="stable")
                places[text].append(np.argsort(order, axis=1))
            bar.update(len(batch))
    return {text: np.concatenate(found) for text, found in places.items()}


# --- images -------------------------------------------------------------------------------------------------------


def look(
    source: Annotations, size: tuple[int, int], grid: tuple[int, int], *, limit: int = 0, crop_pct: float = 0.875
) -> View:
    """Returns images and regions in evaluation's view: resized, and the middle cut out.

    Args:
      limit: images at most; 0 takes all.
      crop_pct: the crop's share of the shorter side of the resized image.
    """
    images, regions, positive = [], [], []
    count = min(limit or len(source), len(source))
    crop = lambda picture: host.center_crop(picture, size, crop_pct, host.interpolation("bicubic"))
    with progress("reading annotations", count) as bar:
        for index in range(count):
            example = source[index]
            images.append(crop(example.image))
            seen = {name: crop(pixels) for name, pixels in example.regions.items()}
            regions.append({name: pixels for name, pixels in seen.items() if pixels.any()})
            positive.append({name: _touched(pixels, grid) for name, pixels in regions[-1].items()})
            bar.update(1)
    return View(np.stack(images), regions, positive)


def _touched(pixels: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    rows, columns = grid
    height, width = pixels.shape
    return pixels.reshape(rows, height // rows, columns, width // columns).any((1, 3)).reshape(-1)


def class_groups(positive: Sequence[Mapping[str, np.ndarray]], unseen: Any) -> dict[str, tuple[str, ...]]:
    """Returns {what a row of the table is about: its classes}: all, learned and unseen ones, and each by itself.

    Args:
      unseen: classes that the scorers' data do not have: "coco" or "voc" for LTRP's lists, or their names.
    """
    if isinstance(unseen, str) and unseen and unseen not in UNSEEN:
        raise unknown("list of unseen classes", unseen, UNSEEN)
    listed = UNSEEN.get(unseen, ()) if isinstance(unseen, str) else tuple(unseen)
    counts: dict[str, int] = {}
    for image in positive:
        for name in image:
            counts[name] = counts.get(name, 0) + 1
    names = sorted(counts, key=lambda name: (-counts[name], name))
    groups = {ALL: tuple(names)}
    if listed:
        groups[LEARNED] = tuple(name for name in names if name not in listed)
        groups[UNLEARNED] = tuple(name for name in names if name in listed)
    return {**{group: members for group, members in groups.items() if members}, **{name: (name,) for name in names}}


# --- recall -------------------------------------------------------------------------------------------------------


def recall_table(
    ranks: Mapping[str, np.ndarray],
    positive: Sequence[Mapping[str, np.ndarray]],
    groups: Mapping[str, Sequence[str]],
    keep_rates: Sequence[float],
) -> list[dict[str, Any]]:
    """Returns a row for each group of classes, scorer and keep rate.

    "micro" is the share of all patches of the classes that is kept; "macro" the mean of that share over the images,
    with its standard error.
    """
    pairs = [(index, name) for index, image in enumerate(positive) for name in image]
    if not pairs:
        raise UserError("None of the images has a region in view: there is nothing to recall.")
    owner, names = np.array([index for index, _ in pairs]), np.array([name for _, name in pairs])
    patches = np.stack([positive[index][name] for index, name in pairs])
    counts = tuple(int(patches.shape[1] * rate) for rate in keep_rates)
    rows = []
    found = {
        text: metrics.patch_recall(jnp.asarray(r[owner]), jnp.asarray(patches), counts) for text, r in ranks.items()
    }
    found = {text: tuple(np.asarray(part) for part in parts) for text, parts in found.items()}
    for group, members in groups.items():
        chosen = np.isin(names, list(members))
        images, place = np.unique(owner[chosen], return_inverse=True)
        for text, (hits, total) in found.items():
            kept, there = np.zeros((len(images), len(counts))), np.zeros(len(images))
            np.add.at(kept, place, hits[chosen])
            np.add.at(there, place, total[chosen])
            shares = kept / there[:, None]
            error = shares.std(0, ddof=1) / len(images) ** 0.5 if len(images) > 1 else np.full(len(counts), np.nan)
            for column, rate in enumerate(keep_rates):
                rows.append(
                    {
                        "class": group,
                        "scorer": text,
                        "keep rate": rate,
                        "micro": float(kept[:, column].sum() / there.sum()),
                        "macro": float(shares[:, column].mean()),
                        "error": float(error[column]),
                        "images": len(images),
                        "patches": int(there.sum()),
                    }
                )
    return rows


def _nearest(rates: Sequence[float], wanted: float) -> float:
    return min(rates, key=lambda rate: abs(rate - wanted))


# --- what is left to read -----------------------------------------------------------------------------------------


def summary_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Lays the rows of one group and keep rate out for a terminal."""
    width = max(len(row["scorer"]) for row in rows)
    first = rows[0]
    lines = [f"recall of {first['class']} at keep rate {first['keep rate']}, {first['images']} images"]
    for row in sorted(rows, key=lambda row: -row["macro"]):
        lines.append(f"  {row['scorer']:<{width}}  {row['macro']:6.1%} ± {row['error']:.1%}   micro {row['micro']:.1%}")
    return "\n".join(lines)


def curves(rows: Sequence[Mapping[str, Any]], group: str, title: str = "") -> Any:
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


def bars(rows: Sequence[Mapping[str, Any]], group: str) -> Any:
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


def _describe(
    config: Config,
    workdir: Path,
    rows: list[dict[str, Any]],
    view: View,
    ranks: Mapping[str, np.ndarray],
    grid: tuple[int, int],
    data: str,
) -> None:
    at = _nearest(config.keep_rates, config.keep_rate)
    report = Report("jaxprune", workdir.name)
    section = report.section("Patches of objects", slug="patch_recall")
    section.text(
        f"{data}. A patch belongs to a class if one of its pixels does; recall is the share of these that is kept."
    )
    groups = list(dict.fromkeys(row["class"] for row in rows))
    whole = [group for group in groups if group in (ALL, LEARNED, UNLEARNED)]
    chosen = [row for row in rows if row["keep rate"] == at]
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
        caption=f"Recall at keep rate {at}, ± standard error.",
        highlight={"recall, mean of images": "max", "recall of all patches": "max"},
        formats={"recall, mean of images": ".1%", "recall of all patches": ".1%"},
    )
    for group in whole:
        section.figure(curves(rows, group), f"Recall of {group}; the band is two standard errors.")
    section.figure(kept_pictures(view, ranks, grid, at), f"What each scorer keeps at keep rate {at}.")
    single = [group for group in groups if group not in whole]
    if len(single) > 1:
        section.gallery([bars(chosen, name) for name in single[:CLASSES]], columns=2)
        by_class = {name: {r["scorer"]: r["macro"] for r in chosen if r["class"] == name} for name in single}
        images = {row["class"]: row["images"] for row in chosen}
        section.table(
            [{"class": name, "images": images[name], **by_class[name]} for name in single],
            caption=f"Recall by class at keep rate {at}, mean of the images that have it.",
            formats=dict.fromkeys(ranks, ".1%"),
        )
    section.command(setup.command())
    report.add_to(workdir / "report.html")
