"""The report on features: contents of the files, classification by features, and nearest images."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxprune.commands.shared.framed_picture import framed_picture
from jaxprune.data.source import Source
from jaxprune.evaluate.collectors.features import FEATURES
from jaxprune.evaluate.feature_files import unreadable_of
from jaxprune.evaluate.feature_formats import read_shard
from jaxprune.evaluate.feature_probe import Labelled, Probed
from jaxprune.measures.knn import nearest
from jaxprune.preprocessing import Preprocessing
from jaxprune.report import Section, findings, plots, spread
from jaxprune.report.pictures.base import WHITE
from jaxprune.report.pictures.layout import beside, tile
from jaxprune.report.pictures.text import label
from jaxprune.report.scorer_names import about_images
from jaxprune.report.table import Table, column

DRAWN, NEIGHBOURS = 6, 5  # held-out images in the picture, and number of nearest images of each
_GAP = 12  # pixels between an image and its nearest ones


@dataclasses.dataclass(frozen=True)
class SplitContents:
    """The files of a split: images, files, and the shape and dtype of each feature of an image."""

    split: str = column("split")
    images: int = column("images")
    files: int = column("files")
    shapes: Mapping[str, str] = column()


def contents(paths: Mapping[str, Sequence[Path]], sources: Mapping[str, Source]) -> Table[SplitContents]:
    """Returns a row for each split.

    Args:
      paths: the files, by split.
      sources: the images, by split, with the unreadable ones known.
    """
    readable = {split: len(source) - unreadable_of(source) for split, source in sources.items()}
    return Table(_content(split, files, readable[split]) for split, files in paths.items())


def describe_files(section: Section, rows: Table[SplitContents], preprocessing: Preprocessing, plan: Any) -> None:
    """Describes the files, images and plan in a section of a report.

    Args:
      rows: what `contents` returned.
      preprocessing: of the images.
      plan: plan of the network, or None.
    """
    under = (
        f"Tokens are reduced by `{plan.text}`; maps are dense again, with zeros for dropped patches. " if plan else ""
    )
    written = "; ".join(f"`{name}` is {meaning}" for name, meaning in FEATURES.items() if name in rows[0].shapes)
    section.text(f"{under}{about_images(preprocessing)} In the files, {written}.")
    section.table(rows, caption="Contents of the files in `features/`; shapes are per image.")


def describe_probe(section: Section, probed: Probed) -> None:
    """Adds the classification by features to a section of a report."""
    rows, chance = probed.rows, probed.rows[0].chance
    meaning = spread.meaning(spread.WILSON, rows[0].images)
    accuracies = {row.name: row.accuracy for row in rows}
    summary = f"{findings.finding(accuracies, 'accuracy', of='features and classifiers')}; chance is {chance:.1%}."
    caption = f"Held-out images classified by the features of training images: accuracy, {spread.BRACKETS}."
    section.text(summary)
    section.table(rows, caption=caption)
    if len(rows) > 2:  # a plot of two numbers would repeat the table
        values = {row.name: row.accuracy.value for row in rows}
        halves = {row.name: row.accuracy.half for row in rows}
        options: dict[str, Any] = {"reference": {"chance": chance}, "limits": (0, 1), "spec": ".1%"}
        section.figure(plots.bar_plot(values, halves, xlabel="held-out accuracy", **options), f"Whiskers: {meaning}.")


def nearest_images(
    section: Section,
    sources: tuple[Source, Source],
    labelled: tuple[Labelled, Labelled],
    probed: Probed,
    preprocessing: Preprocessing,
) -> np.ndarray:
    """Adds some held-out images with their nearest training images to a section of a report, and returns the picture.

    Args:
      sources: training images and held-out images.
      labelled: their features.
      probed: what `probe` returned.
      preprocessing: of the images.
    """
    (train, held_out), names = labelled, sources[0].class_names
    probe_row = probed.drawn
    feature, predicted = probe_row.features, probed.predictions[probe_row.name]
    right = predicted == held_out.labels
    queries = _some(right, DRAWN)
    rows = nearest(train.vectors[feature], held_out.vectors[feature][queries], k=NEIGHBOURS)
    lines = []
    for query, neighbours in zip(queries, rows, strict=True):
        truth, voted = int(held_out.labels[query]), int(predicted[query])
        verdict = "right" if right[query] else f"predicted {names[voted]}"
        query_picture = framed_picture(sources[1], held_out.index[query], preprocessing, right[query])
        cells = [
            label(
                framed_picture(sources[0], train.index[row], preprocessing, train.labels[row] == truth),
                f"{names[train.labels[row]]}{'' if train.labels[row] == truth else ': another class'}",
            )
            for row in neighbours
        ]
        lines.append(beside([label(query_picture, f"{names[truth]}: {verdict}"), tile(cells, NEIGHBOURS)], _GAP))
    picture = tile(lines, columns=1, pad=_GAP, background=WHITE)
    section.figure(
        picture,
        f"Left, held-out images; to the right of each the training images with the nearest {feature} features by "
        f"cosine, nearest first. Green: the classifier ({probe_row.name}) is right, or the neighbour has the image's "
        f"class; orange: not. As many right as wrong images are shown; of all {len(right)}, {right.mean():.1%} are "
        "right.",
    )
    return picture


def _content(split: str, files: Sequence[Path], images: int) -> SplitContents:
    shard = next(shard for shard in map(read_shard, files) if shard.names)
    shapes = {
        name: f"{' × '.join(map(str, values.shape[1:]))}, {values.dtype}" for name, values in shard.features.items()
    }
    return SplitContents(split, images, len(files), shapes)


def _some(right: np.ndarray, count: int) -> np.ndarray:
    """Returns indices of images, equally many wrong and right ones as far as possible."""
    wrong, fine = np.flatnonzero(~right), np.flatnonzero(right)
    half = min(len(wrong), max(count // 2, count - len(fine)))
    return np.concatenate([_spaced(wrong, half), _spaced(fine, min(len(fine), count - half))])


def _spaced(numbers: np.ndarray, count: int) -> np.ndarray:
    return numbers[np.arange(count) * len(numbers) // max(count, 1)]
