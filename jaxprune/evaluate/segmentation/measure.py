"""One pass over images with label maps: the class of each pixel by every network, and what is counted of it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxprune import data
from jaxprune.data.augment_maps import normalize_padded
from jaxprune.data.joint.segmentation import Shape, TestMaps
from jaxprune.data.sample import Picked
from jaxprune.data.source import Source
from jaxprune.dense import ExitSegmenter
from jaxprune.dense.parts import canvas
from jaxprune.evaluate import Batch, Call, Forward, run_over
from jaxprune.evaluate.collectors.segmentation import Outcome, Segmentations
from jaxprune.evaluate.segmentation.at_test import TestTime, groups, shapes_of
from jaxprune.nn.params import Split, merge
from jaxprune.ops.label_maps import IGNORED
from jaxprune.preprocessing import Preprocessing

Arrays = dict[str, jax.Array]


def predictor(
    parts: Split, time: TestTime, way: TestMaps, record: Preprocessing, num_classes: int, first: int = 0
) -> Callable[[Mapping[str, jax.Array], Mapping[str, jax.Array]], dict[str, jax.Array]]:
    """Returns the forward function of a network: (arrays, batch) -> `prediction` (b, h, w), `confusion` (b, k, k).

    Of a network with exits also `rows` (b, windows, heads), the tokens that reach each head.

    Args:
      parts: the network; its arrays may be others, as in training.
      time: how it is tested.
      way: the way of images into the batch.
      record: the normalisation.
      first: the first of the scales of `way` that are this network's.
    """

    def call(arrays: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        rest = {name: x for name, x in parts.rest.items() if name not in arrays}
        network = merge(parts.graph, dict(arrays), rest)
        rows: list[jax.Array] = []

        def segment(images: jax.Array) -> jax.Array:
            if not isinstance(network, ExitSegmenter):
                return network(images)
            scores, counts = network.counted(images)
            rows.append(counts.reshape(len(batch["shape"]), -1, counts.shape[-1]))
            return scores

        prediction = classes_of(segment, batch, time, way, record, first)
        return {
            **({"rows": jnp.concatenate(rows, axis=1)} if rows else {}),
            "prediction": prediction.astype(jnp.uint8),
            "confusion": jax.vmap(lambda labels, classes: confusion(labels, classes, num_classes))(
                batch["label_map"], prediction
            ),
        }

    return call


def classes_of(
    segment: Callable[[jax.Array], jax.Array],
    batch: Mapping[str, jax.Array],
    time: TestTime,
    way: TestMaps,
    record: Preprocessing,
    first: int = 0,
) -> jax.Array:
    """Returns the class of each pixel of the images of a batch at their own sizes, (b, h, w).

    Args:
      segment: the network: normalised images -> logits of every pixel.
      batch: images as `way` prepared them.
      time, way, record, first: see `predictor`.
    """
    scales = []
    for scale in range(first, first + len(time.scales)):
        suffix = f"_{scale}" if scale else ""
        images, extents = batch[f"image{suffix}"], batch[f"extent{suffix}"]
        scales.append({"images": normalize_padded(images, extents, record.mean, record.std), "extents": extents})
    shares = canvas.probabilities(
        segment, scales, batch["shape"], way.map_canvas, window=time.window, stride=time.step, flip=time.flip
    )
    return shares.argmax(-1)


def confusion(labels: jax.Array, classes: jax.Array, num_classes: int) -> jax.Array:
    """Counts the pixels of one image by label (row) and prediction (column), int32 (k, k)."""
    pairs = jnp.where(labels == IGNORED, num_classes**2, labels.astype(jnp.int32) * num_classes + classes)
    counts = jnp.zeros(num_classes**2 + 1, jnp.int32).at[pairs.reshape(-1)].add(1)
    return counts[:-1].reshape(num_classes, num_classes)


def measure(
    networks: Mapping[str, tuple[Split, Arrays]],
    source: Source,
    time: TestTime,
    record: Preprocessing,
    mesh: Mesh,
    *,
    batch_size: int,
    sizes: Mapping[str, Shape] | None = None,
    pictures: int = 0,
    calls: dict[Any, Call] | None = None,
    num_threads: int | None = None,
    process_index: int = 0,
    process_count: int = 1,
) -> dict[str, Outcome]:
    """Returns what each network makes of the images of a source, by name.

    Args:
      networks: {name: (its structure, its arrays)}, the dense one first.
      source: images with `label_map`.
      time: how they are tested.
      record: the network's preprocessing, for its normalisation.
      batch_size: images a batch.
      sizes: {name: height and width} of networks that read other images than `time.size`, resized from the same ones;
        labels are counted at their own size in any case.
      pictures: number of images with the lowest IoU to keep, of the first network.
      calls: forward functions of earlier calls of the same networks, which are not compiled again; it is added to.
      num_threads, process_index, process_count: see `data.eval_batches`.
    """
    calls = {} if calls is None else calls
    collector = Segmentations(tuple(networks), source.num_classes, pictures)
    time_of = {name: time.at(size) for name, size in (sizes or {}).items()}
    times = list(dict.fromkeys([time, *time_of.values()]))
    options: dict[str, Any] = {"num_threads": num_threads, "process_index": process_index}
    options |= {"batch_size": batch_size, "process_count": process_count}
    for places, way, batches in passes(source, times, shapes_of(source), record, **options):
        forwards = {}
        for name, (parts, arrays) in networks.items():
            test = time_of.get(name, time)
            first = times.index(test) * len(test.scales)
            call = predictor(parts, test, way, record, source.num_classes, first)
            forwards[name] = Forward(calls.setdefault((name, test, way, first), call), arrays)
        collector.places = places
        run_over(batches, forwards, [collector], mesh, desc="segment")
    return collector.result()


def passes(
    source: Source, times: Sequence[TestTime], shapes: Sequence[Shape], record: Preprocessing, **options: Any
) -> Iterator[tuple[list[int], TestMaps, Iterable[Batch]]]:
    """Yields the images that share canvases, as their places in a source, their way into a batch, and the batches.

    Args:
      source: images with `label_map`.
      times: tests of one mode, whose scales come after one another in a batch.
      shapes: height and width of each image.
      record: the network's preprocessing.
      options: `batch_size` and others of `data.eval_batches`.
    """
    for places, way in groups(times, shapes):
        examples = Picked(source, places) if len(places) < len(source) else source
        yield places, way, data.eval_batches(examples, preprocessing=record, transform=way, **options)
