"""A classifier's predictions for held-out images: accuracy overall and by class, confusions, some examples."""

import collections
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from jaxprune.data.clips import Views, one_view, read_views
from jaxprune.data.crop_resize import read_image
from jaxprune.evaluate import Batch, Stacked, run_over
from jaxprune.evaluate.forwards import probabilities
from jaxprune.measures.intervals import Interval, share
from jaxprune.report.table import Table, column

DRAWN = 8


class Example(NamedTuple):
    """An image with its class and the probabilities of all classes, (c,)."""

    image: np.ndarray
    label: int
    probabilities: np.ndarray


class Predictions(NamedTuple):
    """The predictions of a classifier for n held-out images.

    Attributes:
      labels, predicted: the true and the predicted classes.
      confidences: probability of the predicted class.
      examples: some images, of as many classes as there are; wrong predictions first.
    """

    labels: Int[np.ndarray, "n"]
    predicted: Int[np.ndarray, "n"]
    confidences: Float[np.ndarray, "n"]
    examples: list[Example]

    def accuracy(self) -> Interval:
        """Returns the accuracy with its 95 % interval (Wilson)."""
        correct = self.predicted == self.labels
        return share(int(correct.sum()), len(correct))


@dataclasses.dataclass(frozen=True)
class ClassAccuracy:
    """The accuracy on the images of a class."""

    name: str = column("class")
    accuracy: Interval = column("accuracy", format=".1%", best="max", ends=("low", "high"))
    images: int = column("images")


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
    ((confidences, columns),) = run_over(batches(), forwards, collectors, mesh, desc="predict", show_progress=False)
    return columns["image"], confidences


class PredictionCollector:
    """Collects `Predictions`.

    Args:
      probabilities_of: (outputs of the forward functions by name) -> the probabilities of a batch, (b, c).
      most: maximum number of examples.
    """

    def __init__(self, probabilities_of: Callable[[Mapping[str, Any]], np.ndarray], most: int = DRAWN):
        self._probabilities_of, self._most = probabilities_of, most
        self._columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._examples: dict[bool, list[Example]] = {True: [], False: []}  # by whether the prediction is right

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        confidences, labels = self._probabilities_of(outputs), batch["label"]
        predicted = confidences.argmax(-1)
        self._columns.append((labels, predicted, confidences.max(-1)))
        for place, image in enumerate(batch["image"]):
            examples = self._examples[bool(predicted[place] == labels[place])]
            if _makes_room(examples, int(labels[place]), self._most):
                examples.append(Example(one_view(image), int(labels[place]), confidences[place]))

    def result(self) -> Predictions:
        """Returns the predictions for all images."""
        labels, predicted, confidences = map(np.concatenate, zip(*self._columns, strict=True))
        right, wrong = (_class_by_class(self._examples[kind]) for kind in (True, False))
        half = self._most // 2
        examples = wrong[: self._most - min(half, len(right))] + right[: self._most - min(half, len(wrong))]
        return Predictions(labels, predicted, confidences, examples[: self._most])


def _makes_room(examples: list[Example], label: int, most: int) -> bool:
    """Whether an image of this class is added; of a new class, where there is no room, in the place of a repetition."""
    if len(examples) < most:
        return True
    counts = collections.Counter(example.label for example in examples)
    if label in counts or max(counts.values()) == 1:
        return False
    del examples[max(place for place, example in enumerate(examples) if counts[example.label] > 1)]
    return True


def _class_by_class(examples: Sequence[Example]) -> list[Example]:
    """The first image of each class, then the second of each, and so on."""
    counts: collections.Counter[int] = collections.Counter()
    rounds = []
    for example in examples:
        rounds.append(counts[example.label])
        counts[example.label] += 1
    return [examples[place] for place in np.argsort(rounds, kind="stable")]


def confusions(predictions: Predictions, num_classes: int) -> Int[np.ndarray, "c c"]:
    """Returns the confusion matrix: rows are true classes, columns predictions."""
    matrix = np.zeros((num_classes, num_classes), int)
    np.add.at(matrix, (predictions.labels, predictions.predicted), 1)
    return matrix


def by_class(matrix: Int[np.ndarray, "c c"], class_names: Sequence[str]) -> Table[ClassAccuracy]:
    """Returns a row for each class of a confusion matrix, with 95 % intervals (Wilson)."""
    classes = zip(class_names, matrix.diagonal(), matrix.sum(1), strict=True)
    return Table(ClassAccuracy(name, share(int(right), int(total)), int(total)) for name, right, total in classes)
