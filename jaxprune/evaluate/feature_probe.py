"""Classification by frozen features: nearest neighbours and a linear classifier."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxprune.evaluate.feature_formats import read_shard
from jaxprune.measures.intervals import wilson_interval
from jaxprune.measures.knn import knn_classes
from jaxprune.measures.linear_head import LinearHead, fit_linear_head


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


class Probed(NamedTuple):
    """The results of `probe`.

    Attributes:
      rows: rows of a table, one per feature and classifier.
      neighbours: by feature, the nearest-neighbour predictions for the held-out images, int (m,).
      heads: by feature, the linear classifiers.
    """

    rows: list[dict[str, Any]]
    neighbours: dict[str, np.ndarray]
    heads: dict[str, LinearHead]


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
    rows, voted, heads = [], {}, {}
    sizes = {"images": len(held_out.labels), "training images": len(train.labels), "chance": 1 / num_classes}
    for name, vectors in held_out.vectors.items():
        known = train.vectors[name]
        voted[name] = knn_classes(known, train.labels, vectors, k=neighbours)
        heads[name] = fit_linear_head(known, train.labels, num_classes)
        linear = heads[name].classes(vectors)
        found = {f"{min(neighbours, len(known))} nearest neighbours": voted[name], "linear": linear}
        for classifier, classes in found.items():
            accuracy = _accuracy(classes == held_out.labels)
            rows.append({"features": name, "classifier": classifier, **accuracy, **sizes})
    return Probed(rows, voted, heads)


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the accuracies of `probe` with their 95 % intervals (Wilson), the number of images, and chance."""
    found: dict[str, Any] = {}
    for row in rows:
        name = f"{row['features']}, {row['classifier']}"
        found |= {name: row["accuracy"], f"{name}, low": row["low"], f"{name}, high": row["high"]}
    return {**found, "held-out images": rows[0]["images"], "chance": rows[0]["chance"]} if rows else {}


def _columns(shards: Sequence[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return ((shard.index, shard.labels) for shard in shards)


def _accuracy(right: np.ndarray) -> dict[str, float]:
    low, high = wilson_interval(int(right.sum()), len(right))
    return {"accuracy": float(right.mean()), "low": low, "high": high}
