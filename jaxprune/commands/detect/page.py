"""The report of `detect`: average precision with intervals, classes, plans, and images with what was found."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxprune.bench.costs import Promise
from jaxprune.commands.shared import dense_page, object_pictures, reporting
from jaxprune.commands.shared.dense_page import Tested
from jaxprune.config import Config
from jaxprune.data.objects.truth import Truth
from jaxprune.evaluate.detection import DetectionOutcome
from jaxprune.files import make_directory
from jaxprune.measures.detection_matches import at_overlap, interval, paired_interval
from jaxprune.measures.intervals import NO_INTERVAL, Interval
from jaxprune.nn.patch_embed import pair
from jaxprune.report import Section
from jaxprune.report.table import Table, column
from jaxprune.train.writer import read_metrics

JACKKNIFE = "95 % interval over images (jackknife)"
# COCO's kinds of average precision, and what metrics, summaries and reports call them.
KINDS = {"bbox": "box", "segm": "mask"}
AREAS = {"AP_small": "small", "AP_medium": "medium", "AP_large": "large"}
LOSSES = ("loss_rpn_cls", "loss_rpn_loc", "loss_cls", "loss_box_reg", "loss_mask")


@dataclasses.dataclass(frozen=True)
class KindRow:
    """Average precision of boxes, or of masks."""

    kind: str = column("of")
    ap: Interval = column("AP", format=".3g", ends=("low", "high"))
    ap50: Interval = column("AP50", format=".3g", ends=("AP50 low", "AP50 high"))
    ap75: float = column("AP75", format=".3g")
    small: float | None = column("small", format=".3g")
    medium: float | None = column("medium", format=".3g")
    large: float | None = column("large", format=".3g")


@dataclasses.dataclass(frozen=True)
class ClassRow:
    """A class of a table."""

    name: str = column("class")
    objects: int = column("objects")
    box: float | None = column("box AP", format=".3g")
    mask: float | None = column("mask AP", format=".3g")


@dataclasses.dataclass(frozen=True)
class NetworkRow:
    """A network of a comparison."""

    plan: str = column("plan")
    gflops: float = column("GFLOPs", format=".4g")
    box: Interval = column("box AP", format=".3g", ends=("low", "high"))
    difference: Interval = column("difference", format="+.3g")
    mask: float | None = column("mask AP", format=".3g")
    images_per_second: float | None = column("images/s", format=".3g", default=None)
    promise: Promise | None = None
    ap50: Interval | None = column("box AP50", format=".3g", ends=("AP50 low", "AP50 high"), default=None)


def describe(
    config: Config,
    workdir: Path,
    summary: Mapping[str, Any],
    *sources: Any,
    tests: Mapping[str, Tested[DetectionOutcome]],
    truth: Truth,
    class_names: Sequence[str],
) -> None:
    """Adds the section on a run, and writes `classes.csv` and, with plans, `plans.csv`.

    Args:
      summary: the summary of the run.
      sources: data sources whose unreadable files are listed.
      tests: by plan, the network as it is first.
      truth: the objects of the held-out images.
      class_names: in the order of the classes.
    """
    make_directory(workdir)
    first = next(iter(tests.values())).outcome
    title = "Detection" if dense_page.trains(summary) else "Test of a detector"
    with reporting.report_section(workdir, workdir.name, title, f"detect-{workdir.name}") as section:
        _head(section, config, workdir, summary, first)
        if len(tests) > 1:
            _plans(section, workdir, tests)
        rows = _classes(first, truth, class_names)
        rows.write_csv(workdir / "classes.csv")
        section.table(rows, caption="Classes: objects without crowds, and AP; a class without objects has none.")
        object_pictures.add_gallery(section, first.pictures, truth, class_names, config.drawn_score)
        reporting.wall_clock(section, dict(summary))
        reporting.broken_files(section, *sources)


def _head(
    section: Section, config: Config, workdir: Path, summary: Mapping[str, Any], outcome: DetectionOutcome
) -> None:
    height, width = pair(config.data.img_size)
    section.text(
        f"{dense_page.introduction(config, summary, 'only pyramid and heads are')} Tested on {summary['images']} "
        f"images, resized to fit {width} × {height} pixels. AP is COCO's: the mean over overlaps from .5 to .95 and "
        "over classes."
    )
    scores = {f"{title} AP": f"{title}_AP" for kind, title in KINDS.items() if kind in outcome.precision}
    dense_page.add_tiles(section, summary, scores, JACKKNIFE)
    section.table(
        _kinds(outcome),
        caption=f"AP over overlaps from .5 to .95 and at .5 with their {JACKKNIFE}, at .75, and of small (below 32² "
        f"pixels), medium and large (from 96²) objects, of {summary['images']} images; empty where there are none.",
    )
    if dense_page.trains(summary):
        records = read_metrics(workdir)
        lines = {f"train/{name}": name.removeprefix("loss_") for name in LOSSES}
        reporting.curves(section, records, {"train/loss": "all", **lines}, "loss")
        reporting.curves(section, records, {f"eval/{name}_AP": name for name in KINDS.values()}, "AP", shares=True)


def _kinds(outcome: DetectionOutcome) -> Table[KindRow]:
    rows = []
    for kind, precision in outcome.precision.items():
        numbers = precision.summary
        areas = [numbers[name] if numbers[name] >= 0 else None for name in AREAS]
        spans = (interval(matched) for matched in (outcome.matches[kind], at_overlap(outcome.matches[kind], 0.5)))
        rows.append(KindRow(KINDS[kind], *spans, numbers["AP75"], *areas))
    return Table(rows)


def _plans(section: Section, workdir: Path, tests: Mapping[str, Tested[DetectionOutcome]]) -> None:
    dense, rows = next(iter(tests.values())).outcome, []
    for name, (outcome, gflops, cost) in tests.items():
        difference = paired_interval(outcome.matches["bbox"], dense.matches["bbox"]) if rows else NO_INTERVAL
        mask = outcome.precision["segm"].summary["AP"] if "segm" in outcome.precision else None
        speed = (None, None) if cost is None else (cost.images_per_second, cost.promise)
        ap50 = interval(at_overlap(outcome.matches["bbox"], 0.5))
        rows.append(NetworkRow(name, gflops, interval(outcome.matches["bbox"]), difference, mask, *speed, ap50))
    timed = " Speed was measured in turns, heads included." if any(test.cost for test in tests.values()) else ""
    dense_page.add_comparison(
        section,
        workdir,
        Table(rows),
        field="box",
        score="box AP",
        columns=("ap50", "mask"),
        caption=f"Each network, with the {JACKKNIFE}, {dense.images} images; difference: of box AP from the first row, "
        f"on the same images. AP50: at an overlap of .5. GFLOPs of one image, heads included.{timed}",
    )


def _classes(outcome: DetectionOutcome, truth: Truth, class_names: Sequence[str]) -> Table[ClassRow]:
    """One row a class, in the order of the classes."""
    place = {number: row for row, number in enumerate(outcome.precision["bbox"].class_ids.tolist())}
    or_none = lambda value: None if np.isnan(value) else float(value)
    rows = []
    for number, name in zip(truth.category_ids, class_names, strict=True):
        row = place[number]
        values = {kind: or_none(precision.per_class[row]) for kind, precision in outcome.precision.items()}
        objects = int(outcome.matches["bbox"][row].objects.sum())
        rows.append(ClassRow(name, objects, values["bbox"], values.get("segm")))
    return Table(rows)
