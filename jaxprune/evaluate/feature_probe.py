"""Classification by frozen features: nearest neighbours and a linear classifier."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxprune.evaluate.feature_formats import read_shard
from jaxprune.measures.intervals import Interval, share
from jaxprune.measures.knn import knn_classes
from jaxprune.measures.linear_head import LinearHead, fit_linear_head
from jaxprune.report.table import Table, column


class Labelled(NamedTuple):
    """Features of images with one class each.

    Attributes:
      index: indices of the images in their source, int (n,).
      labels: their classes, int (n,).
      vectors: features by name, float32 (n, d); maps are averaged.
    """

    index: np.ndarray
    labels: np.ndarray
    vectors: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ProbeRow:
    """The accuracy on held-out images by one feature and classifier, and by chance."""

    features: str = column("features")
    classifier: str = column("classifier")
    accuracy: Interval = column("accuracy", format=".1%", best="max", ends=("low", "high"))
    images: int = column("images")
    training_images: int = column("training images")
    chance: float = column("chance", format=".1%")

    @property
    def name(self) -> str:
        """The feature and the classifier."""
        return f"{self.features}, {self.classifier}"


class Probed(NamedTuple):
    """The results of `probe`.

    Attributes:
      rows: one per feature and classifier.
      predictions: the predicted classes of the held-out images by `ProbeRow.name`, int (m,).
      heads: by feature, the linear classifiers.
    """

    rows: Table[ProbeRow]
    predictions: dict[str, np.ndarray]
    heads: dict[str, LinearHead]

    @property
    def drawn(self) -> ProbeRow:
        """The row whose predictions are drawn: the first of the highest accuracy."""
        return max(self.rows, key=lambda row: row.accuracy.value)


def read_labelled(paths: Sequence[Path]) -> Labelled | None:
    """Reads the features of a split from its files; None if images have no label, or several."""
    shards = [shard for shard in map(read_shard, paths) if shard.names]
    if any(shard.labels is None or shard.labels.ndim != 1 for shard in shards):
        return None
    vectors: dict[str, list[np.ndarray]] = {}
    for shard in shards:
        for name, values in shard.features.items():
            values = values.astype(np.float32)
            name, values = (f"mean of {name}", values.mean((1, 2))) if values.ndim == 4 else (name, values)
            vectors.setdefault(name, []).append(values)
    index, labels = (np.concatenate(columns) for columns in zip(*_columns(shards), strict=True))
    return Labelled(index, labels, {name: np.concatenate(parts) for name, parts in vectors.items()})


def probe(train: Labelled, held_out: Labelled, num_classes: int, *, neighbours: int) -> Probed:
    """Classifies held-out images by their features.

    Args:
      train: the features to fit the classifiers to.
      held_out: the features to classify.
      num_classes: number of classes.
      neighbours: number of neighbours that vote.
    """
    rows, predicted, heads = [], {}, {}
    sizes = (len(held_out.labels), len(train.labels), 1 / num_classes)
    for name, vectors in held_out.vectors.items():
        bank = train.vectors[name]
        heads[name] = fit_linear_head(bank, train.labels, num_classes)
        predictions = {
            f"{min(neighbours, len(bank))} nearest neighbours": knn_classes(bank, train.labels, vectors, k=neighbours),
            "linear": heads[name].classes(vectors),
        }
        for classifier, classes in predictions.items():
            right = int((classes == held_out.labels).sum())
            rows.append(ProbeRow(name, classifier, share(right, len(held_out.labels)), *sizes))
            predicted[rows[-1].name] = classes
    return Probed(Table(rows), predicted, heads)


def summarise(rows: Table[ProbeRow]) -> dict[str, Any]:
    """Returns the accuracies of `probe` with their 95 % intervals (Wilson), the number of images, and chance."""
    summary: dict[str, Any] = {}
    for row in rows:
        summary |= {row.name: row.accuracy.value, f"{row.name}, low": row.accuracy.low}
        summary |= {f"{row.name}, high": row.accuracy.high}
    return {**summary, "held-out images": rows[0].images, "chance": rows[0].chance} if rows else {}


def _columns(shards: Sequence[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return ((shard.index, shard.labels) for shard in shards)
