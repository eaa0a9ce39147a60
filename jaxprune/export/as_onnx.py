"""Export to ONNX: one file for any batch size, converted by jax2onnx and run by ONNX Runtime."""

import collections
import contextlib
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax import export

from jaxprune.dense import ExitSegmenter
from jaxprune.errors import UserError
from jaxprune.export import broadcasts
from jaxprune.export.as_stablehlo import writable
from jaxprune.export.exported_function import IMAGES, Program, as_text, describe, program
from jaxprune.export.portable import flat, trace
from jaxprune.export.verify import BATCHES, Run, Verified, pixels, write_verified
from jaxprune.ops.convolution import as_operators
from jaxprune.reduction.parts.find_method import shown_name
from jaxprune.train.progress import still

OPSET = 21
METADATA = "jaxprune"  # the key of the file's metadata
NEEDED = ("jax2onnx", "onnx", "onnxruntime")
_CONTROL_FLOW = ("If", "Loop", "Scan")

_log = logging.getLogger(__name__)


def onnx(
    model: Any,
    path: str | os.PathLike,
    *,
    inputs: str = "uint8",
    class_names: Sequence[str] = (),
    images: Sequence[Any] | np.ndarray | None = None,
    batch_size: int | None = None,
) -> Verified:
    """Writes a network, dense or reduced, as an ONNX file for any batch size, with its metadata inside.

    The input is called `images`, the outputs `logits`, `kept_0`, …: `kept_i` (b, k) are the patches that step i of a
    plan keeps, -1 for a row that is not a single patch. Counts and tables are constants, and there is no control flow.
    It computes in float32. The file is then read by ONNX Runtime and compared with the network, see
    `export.verify.verify`.

    Args:
      path: path of the file, which is overwritten. Its metadata entry "jaxprune" is JSON, as in `export.stablehlo`.
      inputs: the file's input, RGB (b, height, width, 3), resized and cropped according to `model.preprocessing`:
        "uint8" or "float32" are pixels from 0 to 255, which the file normalises; "normalized" is normalised float32.
      class_names: class names of a classifier, for the metadata.
      images: images for the comparison: picture files or uint8 arrays (h, w, 3); by default eight of the built-in
        scenes.
      batch_size: a fixed batch size for the file; by default any.

    Returns:
      How well file and network agree.

    Raises:
      UserError: jax2onnx is not installed, the network cannot be exported, or the file's results differ, in which case
        it is removed.
    """
    require_packages()
    path = writable(path)
    if batch_size is not None and batch_size < 1:
        raise UserError(f"batch_size={batch_size} holds no image: use 1 or more, or None for any batch size.")
    if isinstance(model, ExitSegmenter) and model.exits == "confidence":
        raise UserError(
            f"ONNX Runtime lacks an operation of {type(model).__name__}'s exits by confidence: export it as StableHLO."
        )
    exported = program(model, inputs)
    described = describe(model, exported, class_names, ("jax", "flax", "jax2onnx", "onnx", "onnxruntime"))
    described["input"]["shape"][0] = batch_size or "batch"
    compared = pixels(images, exported.shape, model.preprocessing)
    _log.info("%s: tracing the network and converting it.", path.name)
    if unrolled := _row_by_row(model):
        _log.warning(
            "%s: %s goes row by row, in loops that the file unrolls: converting it may take many minutes, and the file "
            "has to be timed. StableHLO keeps the loops; tune leaves such methods out with for_onnx=True.",
            path.name,
            ", ".join(unrolled),
        )
    with still(f"{path.name}: converting"):
        file = converted(exported, batch_size)
    file.metadata_props.add(key=METADATA, value=as_text(described))
    batches = BATCHES if batch_size is None else (batch_size,)
    data = file.SerializeToString()
    return write_verified(path, data, load, exported, compared, model.preprocessing, batches=batches)


def _row_by_row(model: Any) -> list[str]:
    """The names of the methods of a network's plan that go row by row."""
    plan = getattr(model, "plan", None)
    classes = () if plan is None else plan.reducer_classes
    return [shown_name(cls) for cls in dict.fromkeys(classes) if cls.row_by_row]


def require_packages() -> None:
    """Checks that the packages for writing and reading ONNX are installed.

    Raises:
      UserError: one is not.
    """
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        raise UserError(f'ONNX needs {", ".join(absent)}: pip install "jaxprune[export]".')


def converted(exported: Program, batch_size: int | None) -> Any:
    """Returns an `onnx.ModelProto`.

    Raises:
      UserError: the network has an operation that cannot be converted.
    """
    to_onnx: Any = importlib.import_module("jax2onnx").to_onnx
    batch = export.symbolic_shape("batch")[0] if batch_size is None else batch_size
    specs = exported.specs(batch)
    # Traced here instead of by jax2onnx, which replaces functions of `jax.numpy` while tracing by its own ones, and
    # those do not support a symbolic batch size. The function passed to it calls primitives only.
    try:
        with as_operators():  # ONNX has them, too
            function = flat(trace(flat(trace(lambda *arrays: exported.call(*arrays), *specs)), *specs))
        with _quiet():
            file: Any = to_onnx(
                lambda *arrays: tuple(function(*arrays)),
                specs,
                model_name="jaxprune",
                opset=OPSET,
                input_names=list(exported.names),
                output_names=list(exported.outputs),
            )
    except UserError:
        raise
    except Exception as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        remedy = "" if batch_size else "give batch_size=, for a file with a fixed batch size, or "
        raise UserError(f"jax2onnx cannot write this network ({why}): {remedy}use export.stablehlo.") from error
    broadcasts.leave_to_operators(file.graph)
    operators = collections.Counter(node.op_type for node in file.graph.node)
    if any(operators[name] for name in _CONTROL_FLOW):
        raise UserError("This network has loops that cannot be unrolled: use export.stablehlo.")
    return file


def load(path: Path, names: Sequence[str] = (IMAGES,)) -> Run:
    """Returns a function that runs a file.

    Args:
      names: of the arrays that the function takes, in order.
    """
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences jax2onnx's messages about its own arrays."""
    logger = logging.getLogger("onnx_ir")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
