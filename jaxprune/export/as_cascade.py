"""Export of a cascade: a file for each network, and a JSON file with the thresholds, for a loader of forty lines."""

import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import nnx
from jax import Array

from jaxprune.dynamic.cascade import Cascade
from jaxprune.dynamic.engine import buckets_of
from jaxprune.dynamic.exit_policy import EVERYBODY, NOBODY
from jaxprune.errors import UserError, unknown
from jaxprune.export import as_onnx, as_stablehlo
from jaxprune.export.program import LOGITS, Program, as_text, describe, in_float32, program, require_fits
from jaxprune.export.verify import Verified, pixels, write_verified
from jaxprune.files import as_path, write_atomically

SUFFIXES = {"stablehlo": ".stablehlo", "onnx": ".onnx"}
INDEX = "cascade.json"

_log = logging.getLogger(__name__)


def cascade(
    model: Cascade,
    folder: str | os.PathLike,
    *,
    format: str = "stablehlo",
    batch_size: int = 32,
    buckets: Sequence[int] = (),
    class_names: Sequence[str] = (),
    images: Sequence[Any] | np.ndarray | None = None,
    platforms: Sequence[str] = as_stablehlo.PLATFORMS,
) -> list[Verified]:
    """Writes a cascade into a folder: `segment_0`, `segment_1`, … and `cascade.json`.

    Each file takes pixels of the last network's size, uint8 (b, height, width, 3), in any number, resizes and
    normalises them for its own network, and returns the logits. `cascade.json` has the batch sizes to run them with
    (`buckets`), the thresholds of the network's dial, from the most exact to the fastest (`dial`), the confidence that
    they are about (`confidence`), and how pictures are prepared. `examples/serve_cascade.py` serves such a folder with
    ONNX Runtime or plain JAX. Each file is read again and compared with the network, see `export.verify.verify`.

    Args:
      folder: is made where it is missing; its files are overwritten.
      format: "stablehlo" or "onnx".
      batch_size, buckets: see `dynamic.Engine`.
      class_names: for `cascade.json`.
      images: for the comparison, see `export.stablehlo`.
      platforms: of StableHLO, see `export.stablehlo`.

    Returns:
      How well each file and its network agree.

    Raises:
      UserError: it is no cascade, a network cannot be exported, or a file's results differ.
    """
    if not isinstance(model, Cascade):
        raise UserError(f"A {type(model).__name__} is no cascade: export it by export.stablehlo or export.onnx.")
    if format not in SUFFIXES:
        raise unknown("format", format, SUFFIXES)
    if format == "onnx":
        as_onnx.require_packages()
    if class_names and len(class_names) != model.num_classes:
        raise UserError(f"There are {len(class_names)} class names for {model.num_classes} classes: name each class.")
    sizes, folder = buckets_of(batch_size, buckets), as_path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give the name of a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).unlink(missing_ok=True)  # a folder with one is whole
    record, differences, segments = model.preprocessing, [], []
    compared = pixels(images, (*record.sides, len(record.mean)), record)
    for index, (network, segment) in enumerate(zip(model.networks, model.segments(), strict=True)):
        path, exported = folder / f"segment_{index}{SUFFIXES[format]}", _program(model, index)
        _log.info("%s: tracing the network and converting it.", path.name)
        if format == "onnx":
            data, load = as_onnx.converted(exported, None).SerializeToString(), as_onnx.load
        else:
            data, load = as_stablehlo.serialized(exported, platforms), as_stablehlo.load
        differences.append(write_verified(path, data, load, exported, compared, record))
        about = describe(network, program(network, "uint8"), (), ("jax", "flax"))
        segments.append({"file": path.name, "gmacs": segment.cost, **{k: about[k] for k in ("architecture", "plan")}})
    about = describe(model, _program(model, 0), class_names, ("jax", "flax"))
    exits = len(segments)
    dial = model.dial or ((*[NOBODY] * (exits - 1), EVERYBODY),)
    values = {"segments": segments, "buckets": list(sizes), "dial": [list(step) for step in dial]}
    kept = ("format", "preprocessing", "input", "class_names", "versions")
    values |= {"confidence": "max_softmax", **{name: about[name] for name in kept}}
    write_atomically(folder / INDEX, as_text(values) + "\n")
    return differences


def _program(model: Cascade, index: int) -> Program:
    """One network of a cascade as a function of the cascade's images."""
    require_fits(model.networks[index])
    graph, state = nnx.split(in_float32(model))
    call, record = model.segments()[index].call, model.preprocessing
    mean, std = (np.asarray(values, np.float32) for values in (record.mean, record.std))

    def of_pixels(images: Array) -> tuple[Array, ...]:
        return (call(nnx.merge(graph, state), images)[1],)

    def normalized(images: Array) -> tuple[Array, ...]:
        return of_pixels((images * std + mean) * 255)

    return Program(of_pixels, normalized, "uint8", (*record.sides, len(record.mean)), (LOGITS,))
