"""Export of networks with exits: a file for each segment, and a JSON file with the thresholds, for a short loader."""

import functools
import logging
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxprune.dynamic import Segmented
from jaxprune.dynamic.cascade import Cascade
from jaxprune.dynamic.engine import buckets_of
from jaxprune.dynamic.exit_policy import EVERYBODY, NOBODY
from jaxprune.errors import UserError, unknown
from jaxprune.export import as_onnx, as_stablehlo
from jaxprune.export.exported_function import as_text, describe, program, require_fits, require_no_gates
from jaxprune.export.segment_programs import chained, segment_programs
from jaxprune.export.verify import Verified, pixels, write_verified
from jaxprune.files import as_path, listing, write_atomically
from jaxprune.models.class_names import require_class_names

SUFFIXES = {"stablehlo": ".stablehlo", "onnx": ".onnx"}
INDEX = "cascade.json"
_SEGMENT = re.compile(rf"segment_\d+({'|'.join(map(re.escape, SUFFIXES.values()))})")

_log = logging.getLogger(__name__)


def cascade(
    model: Segmented,
    folder: str | os.PathLike,
    *,
    format: str = "stablehlo",
    batch_size: int = 32,
    buckets: Sequence[int] = (),
    class_names: Sequence[str] = (),
    images: Sequence[Any] | np.ndarray | None = None,
    platforms: Sequence[str] = as_stablehlo.PLATFORMS,
) -> list[Verified]:
    """Writes a cascade, or a network with exits, into a folder: `segment_0`, `segment_1`, … and `cascade.json`.

    The first file takes pixels of `model.preprocessing`, uint8 (b, height, width, 3), in any number, and returns the
    logits and what later segments need of an image, batch axis first. `cascade.json` names what each file takes
    (`inputs`) and returns (`outputs`, the logits first): the pixels and the logits alone for a cascade, whose files
    resize and normalise the pixels for their own network. It also has the batch sizes to run them with (`buckets`), the
    thresholds of the network's dial, from the most exact to the fastest (`dial`), the confidence that they are about
    (`confidence`), and how pictures are prepared. `examples/serve_cascade.py` serves such a folder with ONNX Runtime or
    plain JAX. The files are read again, run one after the other, and the logits of each exit compared with the network,
    see `export.verify.verify`.

    Args:
      folder: is made where it is missing; its files are overwritten, and further segments of an earlier export removed.
      format: "stablehlo" or "onnx".
      batch_size, buckets: see `dynamic.Engine`.
      class_names: for `cascade.json`.
      images: for the comparison, see `export.stablehlo`.
      platforms: of StableHLO, see `export.stablehlo`.

    Returns:
      How well each file and its network agree.

    Raises:
      UserError: it has no exits, a network cannot be exported, or a file's results differ.
    """
    if not isinstance(model, Segmented):
        raise UserError(f"A {type(model).__name__} has no exits: export it by export.stablehlo or export.onnx.")
    require_no_gates(model)
    if format not in SUFFIXES:
        raise unknown("format", format, SUFFIXES)
    if format == "onnx":
        as_onnx.require_packages()
    require_class_names(class_names, model.num_classes)
    sizes, folder = buckets_of(batch_size, buckets), as_path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give the name of a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).unlink(missing_ok=True)  # a folder with one is whole
    record, differences, segments = model.preprocessing, [], []
    compared = pixels(images, (*record.sides, len(record.mean)), record)
    for network in model.networks if isinstance(model, Cascade) else (model,):
        require_fits(network)
    programs, files = segment_programs(model), []
    for index, (segment, exported) in enumerate(zip(model.segments(), programs, strict=True)):
        path, part = folder / f"segment_{index}{SUFFIXES[format]}", exported.program
        _log.info("%s: tracing the network and converting it.", path.name)
        if format == "onnx":
            data, load = (
                as_onnx.converted(part, None).SerializeToString(),
                functools.partial(as_onnx.load, names=part.names),
            )
        else:
            data, load = as_stablehlo.serialized(part, platforms), as_stablehlo.load
        through = lambda path, part=part, load=load: chained([*files, (part, load(path))])
        differences.append(write_verified(path, data, through, exported.alone, compared, record))
        files.append((part, load(path)))
        segments.append(
            {"file": path.name, "gmacs": segment.cost, "inputs": list(part.names), "outputs": list(part.outputs)}
        )
        if isinstance(model, Cascade):
            network = model.networks[index]
            of_network = describe(network, program(network, "uint8"), (), ("jax", "flax"))
            segments[-1] |= {name: of_network[name] for name in ("architecture", "plan")}
    about = describe(model, programs[0].alone, class_names, ("jax", "flax"))
    exits = len(segments)
    dial = model.dial or ((*[NOBODY] * (exits - 1), EVERYBODY),)
    values = {"segments": segments, "buckets": list(sizes), "dial": [list(step) for step in dial]}
    for path in listing(folder):
        if _SEGMENT.fullmatch(path.name) and path.name not in {segment["file"] for segment in segments}:
            path.unlink()  # of an earlier export
    kept = ("format", "architecture", "preprocessing", "input", "class_names", "versions")
    values |= {"confidence": "max_softmax", **{name: about[name] for name in kept}}
    write_atomically(folder / INDEX, as_text(values) + "\n")
    return differences
