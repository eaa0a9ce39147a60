"""A network as ONNX: one file that serves any batch, made by jax2onnx and run by ONNX Runtime."""

import collections
import contextlib
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from jaxprune.errors import UserError
from jaxprune.export import broadcasts
from jaxprune.export.as_stablehlo import writable
from jaxprune.export.portable import flat, trace
from jaxprune.export.program import IMAGES, Program, as_text, describe, program
from jaxprune.export.verify import BATCHES, Run, Verified, pixels, write_verified
from jaxprune.ops import depthwise

OPSET = 21
METADATA = "jaxprune"  # the key of the file's metadata
NEEDED = ("jax2onnx", "onnx", "onnxruntime")
_CONTROL_FLOW = ("If", "Loop", "Scan")


def onnx(
    model: Any,
    path: str | os.PathLike,
    *,
    inputs: str = "uint8",
    class_names: Sequence[str] = (),
    images: Sequence[Any] | np.ndarray | None = None,
    batch_size: int | None = None,
) -> Verified:
    """Writes a network, dense or reducing, as an ONNX file that takes any batch, with its metadata inside.

    The input is called `images`, the outputs `logits`, `kept_0`, …: `kept_i` (b, k) are the patches that step i of a
    plan keeps, -1 for a row that is no single patch. Counts and tables are constants, and there is no control flow. It
    computes in float32. The file is read again by ONNX Runtime and compared with the network before this returns, see
    `export.verify.verify`.

    Args:
      path: of the file, replaced if it is there. Its metadata "jaxprune" is JSON, as of `export.stablehlo`.
      inputs: what the file reads, (b, height, width, 3), RGB, resized and cropped as `model.preprocessing` says:
        "uint8" or "float32" are pixels from 0 to 255, which it normalises itself; "normalized" are float32, normalised.
      class_names: of a classifier, for the metadata.
      images: to compare on: picture files or uint8 arrays (h, w, 3); by default eight of the built-in scenes.
      batch_size: the one size that the file takes; by default it takes any.

    Returns:
      How well file and network agree.

    Raises:
      UserError: jax2onnx is not installed, or the network cannot be exported, or the file did not compute the same and
        was removed.
    """
    require_packages()
    path = writable(path)
    if batch_size is not None and batch_size < 1:
        raise UserError(f"batch_size={batch_size} holds no image: use 1 or more, or None for a file that takes any.")
    made = program(model, inputs)
    described = describe(model, made, class_names, ("jax", "flax", "jax2onnx", "onnx", "onnxruntime"))
    described["input"]["shape"][0] = batch_size or "batch"
    compared = pixels(images, made.shape, model.preprocessing)
    file = converted(made, batch_size)
    file.metadata_props.add(key=METADATA, value=as_text(described))
    batches = BATCHES if batch_size is None else (batch_size,)
    data = file.SerializeToString()
    return write_verified(path, data, load, made, compared, model.preprocessing, batches=batches)


def require_packages() -> None:
    """Checks that what writes and reads ONNX is installed.

    Raises:
      UserError: it is not.
    """
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        raise UserError(f'ONNX needs {", ".join(absent)}: pip install "jaxprune[export]".')


def converted(made: Program, batch_size: int | None) -> Any:
    """Returns an `onnx.ModelProto`.

    Raises:
      UserError: the network does something that cannot be written so.
    """
    to_onnx: Any = importlib.import_module("jax2onnx").to_onnx
    batch = export.symbolic_shape("batch")[0] if batch_size is None else batch_size
    spec = jax.ShapeDtypeStruct((batch, *made.shape), made.dtype)
    # Traced here, and not by jax2onnx: while it traces it replaces functions of `jax.numpy` by its own, which take no
    # batch of any size. What it calls is primitives alone.
    try:
        with depthwise.implementation_of("grouped"):  # ONNX has an operator for it
            function = flat(trace(flat(trace(lambda images: made.call(images), spec)), spec))
        with _quiet():
            file: Any = to_onnx(
                lambda images: tuple(function(images)),
                [spec],
                model_name="jaxprune",
                opset=OPSET,
                input_names=[IMAGES],
                output_names=list(made.outputs),
            )
    except UserError:
        raise
    except Exception as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        remedy = "" if batch_size else "give batch_size=, for a file of one size of batch, or "
        raise UserError(f"jax2onnx cannot write this network ({why}): {remedy}use export.stablehlo.") from error
    broadcasts.leave_to_operators(file.graph)
    found = collections.Counter(node.op_type for node in file.graph.node)
    if any(found[name] for name in _CONTROL_FLOW):
        raise UserError("This network has loops that cannot be written out: use export.stablehlo.")
    return file


def load(path: Path) -> Run:
    """Returns what runs a file."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {IMAGES: images})


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps jax2onnx from reporting what it does about its own arrays."""
    logger = logging.getLogger("onnx_ir")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
