"""The report of `segment`: scores with intervals, classes, confusions, plans, and the images it does worst on."""

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxprune.bench.costs import Promise
from jaxprune.commands.shared import dense_page, reporting
from jaxprune.commands.shared.dense_page import Tested
from jaxprune.config import Config
from jaxprune.data.maps.label_maps import LabelMaps
from jaxprune.evaluate.collectors.segmentation import Outcome
from jaxprune.evaluate.segmentation.exits import stayed
from jaxprune.files import make_directory, write_atomically
from jaxprune.measures.intervals import NO_INTERVAL, Interval
from jaxprune.measures.segmentation import intervals, paired_intervals, scores
from jaxprune.report import Section, plots
from jaxprune.report.pictures.label_map import VOID, legend, overlay, palette
from jaxprune.report.pictures.layout import upscale
from jaxprune.report.table import Table, column
from jaxprune.train.writer import read_metrics

# How GFLOPs and speed of networks with exits are measured.
BY_EXITS = (
    "They count the tokens that went on, the mean over images; speed is that of dense.TokenEngine, which removes the "
    "others, on images of the test."
)
MOST_CLASSES = 40  # of a drawn confusion matrix
BOOTSTRAP = "95 % interval over images (bootstrap)"


@dataclasses.dataclass(frozen=True)
class ClassRow:
    """A class of a table."""

    name: str = column("class")
    iou: Interval = column("IoU", format=".3g", ends=("low", "high"))
    accuracy: float = column("accuracy", format=".3g")
    share: float = column("share of pixels", format=".3g")


@dataclasses.dataclass(frozen=True)
class NetworkRow:
    """A network of a comparison."""

    plan: str = column("plan")
    gflops: float = column("GFLOPs", format=".4g")
    mean_iou: Interval = column("mIoU", format=".3g", ends=("low", "high"))
    difference: Interval = column("difference", format="+.3g")
    pixel_accuracy: Interval = column("aAcc", format=".3g")
    agreement: float = column("agreement", format=".4g")
    images_per_second: float | None = column("images/s", format=".3g", default=None)
    promise: Promise | None = None


def describe(
    config: Config,
    workdir: Path,
    summary: Mapping[str, Any],
    *sources: Any,
    tests: Mapping[str, Tested[Outcome]],
    rules: LabelMaps | None,
    class_names: Sequence[str],
) -> None:
    """Adds the section on a run, and writes `classes.csv`, `confusion.csv` and, with plans, `plans.csv`.

    Args:
      summary: the summary of the run.
      sources: data sources whose unreadable files are listed.
      tests: by plan, the network as it is first.
      rules: how maps are read; they may have the colours of the classes.
      class_names: in the order of the classes.
    """
    make_directory(workdir)
    first = next(iter(tests.values())).outcome
    colours = colours_of(rules, class_names)
    title = "Segmentation" if dense_page.trains(summary) else "Test of a segmentation network"
    with reporting.report_section(workdir, workdir.name, title, f"segment-{workdir.name}") as section:
        _head(section, config, workdir, summary, first)
        if len(tests) > 1:
            _plans(section, workdir, tests, windows=config.test.mode == "slide")
        rows = _classes(first, class_names)
        rows.write_csv(workdir / "classes.csv")
        section.table(rows, caption=f"Classes: IoU with its {BOOTSTRAP}; share of the labelled pixels.")
        _confusion(section, workdir, first, class_names)
        add_pictures(section, first, class_names, colours)
        reporting.wall_clock(section, dict(summary))
        reporting.broken_files(section, *sources)


def _exits(outcome: Outcome) -> str:
    """How many tokens of a network with exits go on."""
    if not outcome.rows:
        return ""
    counts = ", ".join(f"{count:.4g}" for count in stayed(outcome.rows))
    return f" Of the tokens of an image or window, {counts} reach its heads in the mean."


def colours_of(rules: LabelMaps | None, class_names: Sequence[str]) -> Sequence[tuple[int, int, int]]:
    """The colours of the classes: those of their file, where it has any."""
    return rules.palette if rules is not None and rules.palette else palette(len(class_names))


def _head(section: Section, config: Config, workdir: Path, summary: Mapping[str, Any], outcome: Outcome) -> None:
    windows = "windows that slide" if config.test.mode == "slide" else "whole images"
    scales = ", ".join(f"{scale:g}" for scale in config.test.scales)
    options = [f"scales {scales}"] if len(config.test.scales) > 1 else []
    options += ["mirrored images"] if config.test.flip else []
    also = f", with {' and '.join(options)}" if options else ""
    section.text(
        f"{dense_page.introduction(config, summary, 'only the head is')} Tested on {summary['images']} images by "
        f"{windows}{also}.{_exits(outcome)} {summary['void_share']:.2%} of their pixels have no class and do not count."
    )
    dense_page.add_tiles(section, summary, {"mIoU": "miou", "mAcc": "macc", "aAcc": "aacc"}, BOOTSTRAP)
    if dense_page.trains(summary):
        records = read_metrics(workdir)
        reporting.curves(section, records, {"train/loss": "training"}, "loss")
        reporting.curves(section, records, {"eval/miou": "held-out"}, "mIoU", shares=True)


def _plans(section: Section, workdir: Path, tests: Mapping[str, Tested[Outcome]], *, windows: bool) -> None:
    (_, dense), *_ = tests.items()
    exits = f" {BY_EXITS}" if dense.outcome.rows else ""
    rows = []
    for name, (outcome, gflops, cost) in tests.items():
        spans = intervals(outcome.areas)
        difference = paired_intervals(outcome.areas, dense.outcome.areas) if rows else NO_INTERVAL
        agreement = float(np.mean(outcome.agreement))
        cells = (name, gflops, spans.mean_iou, difference, spans.pixel_accuracy, agreement)
        speed = () if cost is None else (cost.images_per_second, cost.promise)
        rows.append(NetworkRow(*cells, *speed))
    dense_page.add_comparison(
        section,
        workdir,
        Table(rows),
        field="mean_iou",
        score="mIoU",
        columns=("agreement", "pixel_accuracy"),
        caption=f"Each network, with the {BOOTSTRAP}; difference: of mIoU from the first row, on the same images; "
        "agreement: mean share of pixels with the first row's class. GFLOPs of one image or window, head included."
        f"{exits}",
        windows=windows,
    )


def _classes(outcome: Outcome, class_names: Sequence[str]) -> Table[ClassRow]:
    spans, scored = intervals(outcome.areas).iou, scores(outcome.confusion)
    shares = outcome.confusion.sum(1) / max(outcome.confusion.sum(), 1)
    return Table(
        ClassRow(name, spans[k], float(scored.accuracy[k]), float(shares[k])) for k, name in enumerate(class_names)
    )


def _confusion(section: Section, workdir: Path, outcome: Outcome, class_names: Sequence[str]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["label", *class_names])
    writer.writerows([name, *row] for name, row in zip(class_names, outcome.confusion.tolist(), strict=True))
    write_atomically(workdir / "confusion.csv", text.getvalue())
    present = np.flatnonzero(outcome.confusion.sum(0) + outcome.confusion.sum(1))
    if len(present) > MOST_CLASSES:
        section.text(f"Confusions of the {len(present)} classes: `confusion.csv`, pixels by label and prediction.")
        return
    shares = outcome.confusion[np.ix_(present, present)]
    shares = np.round(100 * shares / np.maximum(shares.sum(1, keepdims=True), 1)).astype(int)
    names = [class_names[k] for k in present]
    caption = "Per cent of the pixels of each label (row) by predicted class; pixels are in `confusion.csv`."
    section.figure(plots.confusion_matrix(shares, names), caption=caption)


def add_pictures(
    section: Section, outcome: Outcome, class_names: Sequence[str], colours: Sequence[tuple[int, int, int]]
) -> None:
    """Adds the images of an outcome with their labels and predictions, those with the lowest mIoU first."""
    if not outcome.worst:
        return
    maps = [labels for picture in outcome.worst for labels in (picture.label_map, picture.prediction)]
    present = sorted({int(k) for labels in maps for k in np.unique(labels)} - {VOID})
    section.text("The images with the lowest mIoU of their own: the image, its labels, and the predictions.")
    section.figure(legend([class_names[k] for k in present], [colours[k] for k in present]), caption="", alt="Legend")
    pictures, captions = [], []
    for picture in outcome.worst:
        maps = (picture.label_map, picture.prediction)
        panels = (picture.image, *(overlay(picture.image, classes, colours) for classes in maps))
        pictures += [upscale(panel) for panel in panels]
        captions += [f"image {picture.index}", "labels", f"predictions, mIoU {picture.score:.1%}"]
    section.gallery(pictures, captions, columns=3)
