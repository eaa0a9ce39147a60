"""The pixels of each image by label and prediction, and the pictures on which a network does worst."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxprune.evaluate import Batch
from jaxprune.measures.segmentation import Areas, image_scores
from jaxprune.ops.label_maps import IGNORED


class Pictured(NamedTuple):
    """An image with its labels and predictions.

    Attributes:
      index: of the example.
      score: its own mean IoU.
      image: uint8 (h, w, 3), as the network saw it.
      label_map, prediction: uint8, of the original size.
    """

    index: int
    score: float
    image: np.ndarray
    label_map: np.ndarray
    prediction: np.ndarray


class Outcome(NamedTuple):
    """What a network made of a set.

    Attributes:
      confusion: pixels by label and prediction, int64 (k, k).
      areas: of each image.
      index: of each image's example.
      void: pixels without a label.
      agreement: of each image, the share of pixels with the first network's class, those without a label included.
      worst: the images with the lowest scores, the lowest first; of the first network only.
      rows: of each image, the tokens that reach each head, (windows, heads); () of a network without exits.
    """

    confusion: np.ndarray
    areas: Areas
    index: np.ndarray
    void: int
    agreement: np.ndarray
    worst: list[Pictured]
    rows: tuple[np.ndarray, ...] = ()


class Segmentations:
    """Collects `Outcome` by network, over several passes.

    Args:
      names: of the forward functions, whose outputs are `prediction` and `confusion`; the first is compared with.
      num_classes: of the label maps.
      pictures: number of images to keep.

    Attributes:
      places: the examples of this pass, by their index in it.
    """

    def __init__(self, names: Sequence[str], num_classes: int, pictures: int = 0):
        self.places: Sequence[int] = ()
        self._names, self._pictures = tuple(names), pictures
        self._confusion = {name: np.zeros((num_classes, num_classes), np.int64) for name in names}
        self._areas: dict[str, list[Areas]] = {name: [] for name in names}
        self._agreement: dict[str, list[np.ndarray]] = {name: [] for name in names}
        self._rows: dict[str, list[np.ndarray]] = {name: [] for name in names}
        self._index: list[np.ndarray] = []
        self._void, self._worst = 0, list[Pictured]()

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        places = np.asarray(self.places)[batch["index"]] if len(self.places) else batch["index"]
        self._index.append(np.asarray(places))
        first, shapes = outputs[self._names[0]], batch["shape"]
        rows, columns = (np.arange(side) for side in batch["label_map"].shape[1:])
        inside = (rows < shapes[:, :1])[:, :, None] & (columns < shapes[:, 1:])[:, None]
        self._void += int((inside & (batch["label_map"] == IGNORED)).sum())
        for name in self._names:
            counts = outputs[name]["confusion"].astype(np.int64)
            self._confusion[name] += counts.sum(0)
            self._areas[name].append(Areas.of(counts))
            self._rows[name] += list(outputs[name].get("rows", ()))
            same = (outputs[name]["prediction"] == first["prediction"]) & inside
            self._agreement[name].append(same.sum((1, 2)) / shapes.prod(1))
        if self._pictures:
            self._keep(batch, first["prediction"], places)

    def _keep(self, batch: Batch, predictions: np.ndarray, places: np.ndarray) -> None:
        scores = image_scores(self._areas[self._names[0]][-1])
        # Images are on the host that read them: the first rows of all.
        for row in range(len(batch["image"])):
            if np.isnan(scores[row]):
                continue
            (height, width), (rows, columns) = batch["shape"][row], batch["extent"][row]
            self._worst.append(
                Pictured(
                    int(places[row]),
                    float(scores[row]),
                    np.array(batch["image"][row, :rows, :columns]),
                    np.array(batch["label_map"][row, :height, :width]),
                    np.array(predictions[row, :height, :width]),
                )
            )
        self._worst = sorted(self._worst, key=lambda picture: (picture.score, picture.index))[: self._pictures]

    def result(self) -> dict[str, Outcome]:
        """Returns what each network made of the images."""
        if not self._index:
            return {}
        return {
            name: Outcome(
                self._confusion[name],
                Areas(*(np.concatenate(columns) for columns in zip(*self._areas[name], strict=True))),
                np.concatenate(self._index),
                self._void,
                np.concatenate(self._agreement[name]),
                self._worst if name == self._names[0] else [],
                tuple(self._rows[name]),
            )
            for name in self._names
        }
