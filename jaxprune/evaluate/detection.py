"""One pass over images with objects: what every detector finds, its average precision, and pictures."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxprune import data
from jaxprune.data.augment_objects import detector_input
from jaxprune.data.joint.detection import TestObjects
from jaxprune.data.objects.truth import Truth
from jaxprune.evaluate import Batch, Call, Forward, run_over
from jaxprune.evaluate.collectors.detections import DetectionCollector
from jaxprune.measures.average_precision import AveragePrecision, average_precision
from jaxprune.measures.detection_matches import ClassMatches, matches
from jaxprune.nn.params import Split, merge
from jaxprune.preprocessing import Preprocessing

Arrays = dict[str, jax.Array]


class TestedImage(NamedTuple):
    """An image of the test as the network saw it, and what was found in it.

    Attributes:
      index: in the source.
      image: resized, without its padding, uint8 (h, w, 3).
      shape: height and width of the original image.
      detections: as COCO's results, in pixels of the original image.
    """

    __test__ = False  # no test of pytest

    index: int
    image: np.ndarray
    shape: tuple[int, int]
    detections: list[dict[str, Any]]


class DetectionOutcome(NamedTuple):
    """What a detector made of a set.

    Attributes:
      precision: {"bbox": …, "segm": …}, the latter of detectors with masks.
      matches: the same, image by image; empty where no intervals are asked for.
      images: the number of images that were read.
      detections: the number of detections.
      pictures: some of the images.
    """

    precision: dict[str, AveragePrecision]
    matches: dict[str, tuple[ClassMatches, ...]]
    images: int
    detections: int
    pictures: tuple[TestedImage, ...]


class _OfNetwork:
    """Hands the detections of one network to its collector, and keeps some images."""

    def __init__(self, name: str, truth: Truth, pictures: frozenset[int]):
        self.collector = DetectionCollector(truth.content, truth.image_ids, truth.category_ids)
        self.indices: list[int] = []
        self.pictures: list[TestedImage] = []
        self._name, self._places = name, pictures

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        first = len(self.collector.detections)
        self.collector.update(batch, outputs[self._name])
        detections = self.collector.detections[first:]
        for row, index in enumerate(np.asarray(batch["index"]).tolist()):
            self.indices.append(index)
            if index in self._places and row < len(batch["image"]):
                height, width = np.asarray(batch["extent"][row]).tolist()
                number = self.collector.image_ids[index]
                of_image = [result for result in detections if result["image_id"] == number]
                shape: Any = tuple(np.asarray(batch["shape"][row]).tolist())
                picture = np.asarray(batch["image"][row])[:height, :width]
                self.pictures.append(TestedImage(index, picture, shape, of_image))

    def result(self) -> "_OfNetwork":
        """Returns itself."""
        return self


def measure(
    networks: Mapping[str, tuple[Split, Arrays]],
    source: Any,
    truth: Truth,
    record: Preprocessing,
    mesh: Mesh,
    *,
    batch_size: int,
    sizes: Mapping[str, tuple[int, int]] | None = None,
    masks: bool = True,
    intervals: bool = True,
    pictures: int = 0,
    calls: dict[Any, Call] | None = None,
    num_threads: int | None = None,
    process_index: int = 0,
    process_count: int = 1,
) -> dict[str, DetectionOutcome]:
    """Returns what each detector finds in the images of a source, by name.

    Images that cannot be read are left out, with their objects.

    Args:
      networks: {name: (its structure, its arrays)}, the dense one first.
      truth: the objects of the source.
      record: the preprocessing of images: the height and width that networks read, and the normalisation.
      batch_size: images a batch.
      sizes: {name: (height, width)} of networks that read smaller images, to which the same ones are resized.
      masks: whether the networks have masks.
      intervals: whether to match detections image by image too, for intervals over images.
      pictures: number of images to keep, evenly spread.
      calls: forward functions of earlier calls of the same networks, which are not compiled again; it is added to.
      num_threads, process_index, process_count: see `data.eval_batches`.
    """
    calls = {} if calls is None else calls
    by_size: dict[tuple[int, int], list[str]] = {}
    for name in networks:
        by_size.setdefault((sizes or {}).get(name, record.img_size), []).append(name)
    count = min(pictures, len(source))
    places = frozenset(i * len(source) // max(count, 1) for i in range(count))
    forwards = {
        name: Forward(calls.setdefault(name, predictor(parts, record)), arrays)
        for name, (parts, arrays) in networks.items()
    }
    collected: dict[str, _OfNetwork] = {}
    for size, names in by_size.items():
        batches = data.eval_batches(
            source,
            batch_size=batch_size,
            preprocessing=record,
            transform=TestObjects(size),
            num_threads=num_threads,
            process_index=process_index,
            process_count=process_count,
        )
        collectors = [_OfNetwork(name, truth, places) for name in names]
        of_size = run_over(batches, {name: forwards[name] for name in names}, collectors, mesh, desc="detect")
        collected |= zip(names, of_size, strict=True)
    kinds = ("bbox", "segm") if masks else ("bbox",)
    outcomes = {}
    for name in networks:
        part = collected[name]
        content, results = truth.of_images(part.indices), part.collector.detections
        precision = {kind: average_precision(content, results, kind) for kind in kinds}
        matched = {kind: matches(content, results, kind) for kind in kinds} if intervals else {}
        counts = len(part.indices), len(results)
        outcomes[name] = DetectionOutcome(precision, matched, *counts, tuple(part.pictures))
    return outcomes


def predictor(parts: Split, record: Preprocessing) -> Any:
    """Returns the forward function of a detector: (arrays, batch of `TestObjects`) -> `dense.Detections`.

    Args:
      parts: the network; its arrays may be others, as in training.
      record: the normalisation.
    """

    def call(arrays: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> Any:
        images, sizes, _ = detector_input(batch, mean=record.mean, std=record.std)
        rest = {name: x for name, x in parts.rest.items() if name not in arrays}
        return merge(parts.graph, dict(arrays), rest)(images, sizes)

    return call
