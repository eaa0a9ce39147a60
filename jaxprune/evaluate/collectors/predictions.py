"""A classifier's predictions for held-out images: accuracy overall and by class, confusions, some pictures."""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from jaxprune.data.clips import Views, one_view, read_views
from jaxprune.data.crop_resize import read_image
from jaxprune.evaluate import Batch, Stacked, run_over
from jaxprune.evaluate.forwards import probabilities
from jaxprune.measures.intervals import wilson_interval
from jaxprune.report import Section, plots, spread
from jaxprune.report.pictures.film_strip import still
from jaxprune.report.pictures.prediction_card import prediction_card

SHOWN = 8


class Predictions(NamedTuple):
    """The predictions of a classifier for n held-out images.

    Attributes:
      labels, predictions: int (n,).
      confidences: probability of the predicted class, float (n,).
      cards: pictures of some images with their most likely classes; wrong predictions first.
    """

    labels: np.ndarray
    predictions: np.ndarray
    confidences: np.ndarray
    cards: list[np.ndarray]


def of_pictures(
    model: Any, pictures: Iterable[str | os.PathLike | np.ndarray], mesh: Mesh, *, batch_size: int = 64
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the preprocessed images of picture files, uint8 (n, h, w, 3), and a classifier's probabilities, (n, c).

    For videos these are one clip each, or several views over which the probabilities are averaged.

    Args:
      model: the classifier, whose preprocessing is applied.
      pictures: the files, or images already read from them; for videos see `data.Views`.
      mesh: the devices to run on.
      batch_size: pictures per batch.

    Raises:
      UserError: there are no pictures, or one cannot be read.
    """

    def batches() -> Iterator[dict[str, np.ndarray]]:
        record = model.preprocessing
        views = Views(record) if record.num_frames else None
        file = lambda path: read_image(path, record) if views is None else read_views(path, views)
        read = lambda picture: picture if isinstance(picture, np.ndarray) else file(picture)
        images = map(read, pictures)
        while part := list(itertools.islice(images, batch_size)):
            yield {"image": np.stack(part)}

    forwards, collectors = {"classes": probabilities(model)}, [Stacked("classes", ("image",))]
    ((found, columns),) = run_over(batches(), forwards, collectors, mesh, desc="predict", show_progress=False)
    return columns["image"], found


class Predicted:
    """Collects `Predictions`.

    Args:
      name: of the forward function that computes probabilities, (b, c).
      class_names: of the classes, for the pictures.
      shown: maximum number of pictures.
    """

    def __init__(self, name: str, class_names: Sequence[str], shown: int = SHOWN):
        self._name, self._class_names, self._shown = name, class_names, shown
        self._columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._cards: dict[bool, list[np.ndarray]] = {True: [], False: []}  # by whether the prediction is right

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        confidences, labels = outputs[self._name], batch["label"]
        predictions = confidences.argmax(-1)
        self._columns.append((labels, predictions, confidences.max(-1)))
        for row, image in enumerate(batch["image"]):
            cards = self._cards[bool(predictions[row] == labels[row])]
            if len(cards) < self._shown:
                picture = still(one_view(image))
                cards.append(prediction_card(picture, self._class_names, confidences[row], truth=int(labels[row])))

    def result(self) -> Predictions:
        """Returns the predictions for all images."""
        labels, predictions, confidences = (np.concatenate(column) for column in zip(*self._columns, strict=True))
        right, wrong, half = self._cards[True], self._cards[False], self._shown // 2
        cards = wrong[: self._shown - min(half, len(right))] + right[: self._shown - min(half, len(wrong))]
        return Predictions(labels, predictions, confidences, cards[: self._shown])


def summarise(found: Predictions) -> dict[str, Any]:
    """Returns the accuracy with its 95 % interval (Wilson), and the number of images."""
    correct = found.predictions == found.labels
    low, high = wilson_interval(int(correct.sum()), len(correct))
    return {"accuracy": float(correct.mean()), "accuracy_low": low, "accuracy_high": high, "images": len(correct)}


def confusions(found: Predictions, num_classes: int) -> np.ndarray:
    """Returns the confusion matrix, int (c, c): rows are true classes, columns predictions."""
    matrix = np.zeros((num_classes, num_classes), int)
    np.add.at(matrix, (found.labels, found.predictions), 1)
    return matrix


def by_class(matrix: np.ndarray, class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns a row for each class of a confusion matrix: accuracy, its 95 % interval (Wilson) and number of images."""
    rows = []
    for name, right, total in zip(class_names, matrix.diagonal(), matrix.sum(1), strict=True):
        low, high = wilson_interval(int(right), int(total))
        rows.append({"class": name, "accuracy": right / max(total, 1), "low": low, "high": high, "images": int(total)})
    return rows


def describe(section: Section, found: Predictions, class_names: Sequence[str]) -> None:
    """Adds accuracy, confusions and pictures to a section of a report."""
    summary, matrix = summarise(found), confusions(found, len(class_names))
    half = (summary["accuracy_high"] - summary["accuracy_low"]) / 2
    note = spread.with_meaning(half, spread.WILSON, summary["images"])
    chance = f"{1 / len(class_names):.1%}"
    section.metric_tiles({"accuracy": (f"{summary['accuracy']:.1%}", note), "chance": chance})
    rows = by_class(matrix, class_names)
    section.table(
        spread.as_ranges(rows),
        caption=f"By class: accuracy, {spread.BRACKETS} over the class's images.",
        highlight={"accuracy": "max"},
        formats={"accuracy": ".1%"},
    )
    section.figure(plots.confusion_matrix(matrix, class_names), confusion_text(matrix, class_names))
    section.text("Predictions for some of the images, wrong ones first:")
    section.gallery(found.cards, columns=2)


def confusion_text(matrix: np.ndarray, class_names: Sequence[str]) -> str:
    """Returns the caption of a confusion matrix: the most frequent confusion."""
    wrong = matrix * (1 - np.eye(len(matrix), dtype=int))
    if not wrong.any():
        return "All images are classified correctly."
    row, column = divmod(int(wrong.argmax()), len(wrong))
    return (
        f"The most frequent confusion is {class_names[row]} predicted as {class_names[column]}: "
        f"{wrong[row, column]} of "
        f"{matrix[row].sum()} images. A row is a true class; colours are shares of its images."
    )
