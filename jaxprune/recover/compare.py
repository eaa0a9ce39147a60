"""Healed networks side by side: what each predicts for images that no training saw, and its measured speed."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from jaxprune.bench.timing import OverRounds
from jaxprune.evaluate import Batch, Forward, run_over
from jaxprune.evaluate.collectors.hard_images import RESCUED
from jaxprune.evaluate.contestants import contestant
from jaxprune.evaluate.forwards import pixels
from jaxprune.measures.intervals import Interval, paired_difference, share
from jaxprune.measures.linear_head import LinearHead, fit_linear_head
from jaxprune.nn.host import Host
from jaxprune.nn.params import merge, split
from jaxprune.report.table import column


class NetworkOutputs(NamedTuple):
    """Pooled features of images, or logits if the network has a head, and the labels; -1 without one."""

    values: Float[np.ndarray, "n d"]
    labels: Int[np.ndarray, "n"]


class _OutputCollector:
    """Collects `NetworkOutputs`."""

    def __init__(self) -> None:
        self._parts: list[NetworkOutputs] = []

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        labels = batch["label"]
        if labels.ndim > 1:
            labels = np.full(len(labels), -1, np.int32)  # images of several classes have no right one
        self._parts.append(NetworkOutputs(outputs["network"], labels))

    def result(self) -> NetworkOutputs:
        """Returns the outputs for all images."""
        return NetworkOutputs(*map(np.concatenate, zip(*self._parts, strict=True)))


def network_outputs(model: Host, batches: Iterable[Batch], mesh: Mesh, desc: str = "") -> NetworkOutputs:
    """Returns the outputs of a network for images.

    Args:
      batches: prepared for the network.
    """
    parts = split(model)

    def call(arrays: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        return merge(parts.graph, arrays, {})(pixels(batch["image"], model.preprocessing))[0]

    (collected,) = run_over(
        batches, {"network": Forward(call, {**parts.params, **parts.rest})}, [_OutputCollector()], mesh, desc=desc
    )
    return collected


class OutputClassifier(NamedTuple):
    """Turns outputs into classes: those of the network's own head, or of a linear head on the dense features.

    Attributes:
      head: fitted to the dense network's features; None where networks have heads of their own.
    """

    head: LinearHead | None

    @classmethod
    def of(cls, model: Host, training: Callable[[], NetworkOutputs]) -> "OutputClassifier | None":
        """Returns the classifier for a dense network; None if it has no head and its training images no labels."""
        if model.num_classes:
            return cls(None)
        features, labels = training()
        if labels.min(initial=0) < 0 or not len(labels):
            return None
        return cls(fit_linear_head(features, labels, int(labels.max()) + 1))

    def classes(self, values: Float[np.ndarray, "n d"]) -> Int[np.ndarray, "n"]:
        """The predicted class of each image."""
        return values.argmax(-1) if self.head is None else self.head.classes(values)


@dataclasses.dataclass(frozen=True)
class Row:
    """A network of the comparison; agreement and accuracy are of images that neither training nor choice saw."""

    name: str = column("network")
    minutes: float = column("minutes", format=".3g")
    gflops: float = column("GFLOPs", format=".3g")
    speed: OverRounds = column("speed-up", format=".3g", best="max")
    agreement_before: Interval | str = column("agreement before", format=".1%")
    agreement: Interval | str = column("agreement", format=".1%", best="max")
    accuracy: Interval | str = column("accuracy", format=".1%", best="max")
    lost: Interval | str = column("accuracy − dense", format="+.1%")
    rescued: Interval | str = column(RESCUED, format=".1%")
    images: int = column("n")


@dataclasses.dataclass(frozen=True)
class RateRow:
    """A network at one of the keep rates that it was healed for, before and after."""

    name: str = column("network")
    keep_rate: float = column("keep rate", format="g")
    gflops: float = column("GFLOPs", format=".3g")
    agreement_before: Interval = column("agreement before", format=".1%")
    agreement: Interval = column("agreement", format=".1%")
    accuracy_before: Interval | str = column("accuracy before", format=".1%")
    accuracy: Interval | str = column("accuracy", format=".1%")


class Predictions(NamedTuple):
    """The classes that a network predicts, and what of it is right."""

    classes: Int[np.ndarray, "n"]
    right: Bool[np.ndarray, "n"] | None

    @property
    def labelled(self) -> bool:
        """Whether the images have labels."""
        return self.right is not None

    @classmethod
    def of(cls, classifier: OutputClassifier, outputs: NetworkOutputs) -> "Predictions":
        """The classes of outputs; `right` is None without labels."""
        classes = classifier.classes(outputs.values)
        return cls(classes, classes == outputs.labels if outputs.labels.min(initial=0) >= 0 else None)

    def agreement(self, dense: "Predictions") -> Interval:
        """The share of images with the dense network's prediction."""
        return share(int((self.classes == dense.classes).sum()), len(self.classes))

    def accuracy(self, where: Bool[np.ndarray, "n"] | None = None) -> Interval | str:
        """The share of images that are right, of those `where`; empty if there are none."""
        if self.right is None:
            return ""
        right = self.right if where is None else self.right[where]
        return share(int(right.sum()), len(right)) if len(right) else ""

    def lost(self, dense: "Predictions") -> Interval | str:
        """Accuracy minus the dense network's, paired by image."""
        if self.right is None or dense.right is None:
            return ""
        if self is dense:
            return Interval(0.0, 0.0, 0.0)
        return paired_difference(self.right, dense.right)


def agreement_columns(
    predictions: Predictions | None,
    dense: Predictions | None,
    before: Predictions | None,
    where: Bool[np.ndarray, "n"] | None,
) -> tuple[Interval | str, Interval | str, Interval | str, Interval | str, Interval | str]:
    """Returns the columns of `Row` from `agreement_before` to `rescued`; empty where there are no classes.

    Args:
      before: the predictions of the network that was not healed yet.
      where: images that networks on smaller images get wrong.
    """
    if predictions is None or dense is None:
        return "", "", "", "", ""
    earlier = "" if before is None else before.agreement(dense)
    rescued = "" if where is None else predictions.accuracy(where)
    return earlier, predictions.agreement(dense), predictions.accuracy(), predictions.lost(dense), rescued


def gflops(model: Host) -> float:
    """Returns the forward multiply-accumulates of an image, in units of 10⁹."""
    return contestant(model).gflops()
