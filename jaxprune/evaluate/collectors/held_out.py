"""Held-out metrics of training: loss and accuracy, or mean average precision for images with several labels."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from jaxprune.evaluate import Averages, Batch, Call, Collector, Forward, run_over
from jaxprune.measures.several_labels import mean_over_present
from jaxprune.nn.images import normalize
from jaxprune.nn.params import Split, merge


def logits(parts: Split, mean: Sequence[float], std: Sequence[float]) -> Call:
    """Returns the forward function of a classifier: (arrays, batch) -> logits (b, c).

    Its arrays are parameters, and what else training changes: a ConvNet's statistics.

    Args:
      parts: the classifier.
      mean, std: normalisation of its pixels.
    """

    def call(arrays: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> jax.Array:
        network = merge(parts.graph, dict(arrays), {name: x for name, x in parts.rest.items() if name not in arrays})
        return network(normalize(batch["image"], mean, std))[0]

    return call


def single_label(logits: Call) -> Call:
    """Returns the call that computes cross-entropy and top-1 accuracy of each image from the logits, for `Averages`."""

    def call(arrays: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        predictions, labels = logits(arrays, batch), batch["label"]
        loss = optax.softmax_cross_entropy_with_integer_labels(predictions, labels)
        return {"loss": loss, "accuracy": (predictions.argmax(-1) == labels).astype(jnp.float32)}

    return call


class SeveralLabels:
    """Collects the mean average precision over the classes that occur, in [0, 1], and the binary cross-entropy.

    Args:
      name: of the forward function that computes logits (b, c); labels are (b, c) too.
    """

    def __init__(self, name: str):
        self._name = name
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        self._parts.append((outputs[self._name], batch["label"]))

    def result(self) -> dict[str, float]:
        """Returns {"map", "loss"}."""
        predictions, labels = (np.concatenate(columns) for columns in zip(*self._parts, strict=True))
        loss = optax.sigmoid_binary_cross_entropy(predictions, labels).mean()
        return {"map": mean_over_present(predictions, labels), "loss": float(loss)}


def measure(call: Call, arrays: Any, batches: Any, mesh: Mesh, *, several: bool = False) -> dict[str, float]:
    """Returns the metrics of a pass over held-out images.

    Args:
      call: what `single_label` returned, or logits for images with several labels.
      arrays: its first argument; sharded arrays of a training state keep their sharding.
      batches: with `image` and `label`.
      mesh: the devices to run on.
      several: whether images have several labels.
    """
    collector: Collector = SeveralLabels("model") if several else Averages("model")
    (metrics,) = run_over(batches, {"model": Forward(call, arrays)}, [collector], mesh, desc="held-out")
    return metrics
