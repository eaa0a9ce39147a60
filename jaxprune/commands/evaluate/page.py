"""Accuracy of a classifier on the page: overall, by class, its confusions, and some of its predictions."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from jaxprune.evaluate.collectors.predictions import Example, Predictions, by_class, confusions
from jaxprune.measures.intervals import share
from jaxprune.measures.leaders import leaders
from jaxprune.report import Section, plots, spread
from jaxprune.report.pictures.base import Picture
from jaxprune.report.pictures.film_strip import still
from jaxprune.report.pictures.prediction_card import prediction_card


def describe(
    section: Section, predictions: Predictions, class_names: Sequence[str], *, allowed: Sequence[int] | None = None
) -> None:
    """Adds accuracy, confusions and pictures to a section of a report.

    Args:
      allowed: the classes that predictions are restricted to; None for all.
    """
    accuracy, matrix = predictions.accuracy(), confusions(predictions, len(class_names))
    numbers = list(range(len(class_names))) if allowed is None else list(allowed)
    matrix, names = matrix[np.ix_(numbers, numbers)], [class_names[number] for number in numbers]
    note = spread.of_share(accuracy.low, accuracy.high, len(predictions.labels))
    section.metric_tiles({"accuracy": (f"{accuracy.value:.1%}", note), "chance": f"{1 / len(names):.1%}"})
    caption = f"By class: accuracy, {spread.BRACKETS} over the class's images."
    section.table(by_class(matrix, names), caption=caption)
    section.figure(plots.confusion_matrix(matrix, names), confusion_text(matrix, names))
    section.text("Predictions for some of the images, wrong ones first:")
    section.gallery([_card(example, class_names) for example in predictions.examples], columns=2)


def confusion_text(matrix: Int[np.ndarray, "c c"], class_names: Sequence[str]) -> str:
    """Returns the caption of a confusion matrix: the confusion counted most often, and how many may be as frequent."""
    wrong = matrix * (1 - np.eye(len(matrix), dtype=int))
    if not wrong.any():
        return "All images are classified correctly."
    total = int(matrix.sum())
    (row, column), *level = leaders(
        {place: share(int(wrong[place]), total) for place in zip(*wrong.nonzero(), strict=True)}
    )
    rivals = (
        f"that of {len(level)} other confusion{'s' * (len(level) > 1)} overlaps it, so another may be the most frequent"
        if level
        else "that of no other confusion overlaps it"
    )
    return (
        f"Counted most often: {class_names[row]} predicted as {class_names[column]}, {wrong[row, column]} of "
        f"{matrix[row].sum()} images; of their 95 % intervals, {rivals}. A row is a true class; colours are shares of "
        "its images."
    )


def _card(example: Example, class_names: Sequence[str]) -> Picture:
    return prediction_card(still(example.image), class_names, example.probabilities, truth=example.label)
