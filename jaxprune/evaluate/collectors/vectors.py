"""The features of images, one vector each, as several networks see them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxprune.evaluate import Batch


class ImageVectors(NamedTuple):
    """Features of n images.

    Attributes:
      vectors: by network.
      labels: classes of the images; -1 without one.
      index: numbers of the images in their source.
    """

    vectors: dict[str, Float[np.ndarray, "n d"]]
    labels: Int[np.ndarray, "n"]
    index: Int[np.ndarray, "n"]


class VectorCollector:
    """Collects what forward functions return as `logits`: of networks without a classifier their pooled features."""

    def __init__(self) -> None:
        self._vectors: dict[str, list[np.ndarray]] = {}
        self._columns: dict[str, list[np.ndarray]] = {"label": [], "index": []}

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        for name, of_name in outputs.items():
            self._vectors.setdefault(name, []).append(np.asarray(of_name["logits"], np.float32))
        for name, values in self._columns.items():
            values.append(np.asarray(batch[name]))

    def result(self) -> ImageVectors:
        """Returns the features."""
        vectors = {name: np.concatenate(parts) for name, parts in self._vectors.items()}
        return ImageVectors(vectors, *(np.concatenate(values) for values in self._columns.values()))
