"""A network as StableHLO: one file that plain JAX loads, with the weights inside and any batch."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from jaxprune.checkpoints.files import write_atomically
from jaxprune.errors import UserError
from jaxprune.export.program import as_text, describe, program
from jaxprune.export.verify import BATCHES, Run, Verified, pixels, write_verified

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
METADATA = ".json"  # is appended to the file's name


def stablehlo(
    model: Any,
    path: str | os.PathLike,
    *,
    inputs: str = "uint8",
    class_names: Sequence[str] = (),
    images: Sequence[Any] | np.ndarray | None = None,
    platforms: Sequence[str] = PLATFORMS,
) -> Verified:
    """Writes a network, dense or reducing, as a file of StableHLO, with its metadata as JSON beside it.

    `jax.export.deserialize(Path(path).read_bytes()).call(images)` returns (logits, kept_0, …) for any batch, without
    this package; `kept_i` (b, k) are the patches that step i of a plan keeps, -1 for a row that is no single patch. It
    computes in float32. The file is read again and compared with the network before this returns, see
    `export.verify.verify`.

    >>> import tempfile; import jaxprune; from flax import nnx
    >>> sizes = dict(img_size=8, patch_size=4, embed_dim=8, depth=2, num_heads=1, num_classes=2)
    >>> model = jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))
    >>> path = Path(tempfile.mkdtemp()) / "vit.stablehlo"
    >>> stablehlo(model, path, platforms=("cpu",)).images
    8
    >>> logits, = jax.export.deserialize(path.read_bytes()).call(np.zeros((5, 8, 8, 3), np.uint8))
    >>> logits.shape
    (5, 2)

    Args:
      path: of the file, replaced if it is there; the metadata is at `path` + ".json".
      inputs: what the file reads, (b, height, width, 3), RGB, resized and cropped as `model.preprocessing` says:
        "uint8" or "float32" are pixels from 0 to 255, which it normalises itself; "normalized" are float32, normalised.
      class_names: of a classifier, for the metadata.
      images: to compare on: picture files or uint8 arrays (h, w, 3); by default eight of the built-in scenes.
      platforms: where the file shall run, by JAX's names.

    Returns:
      How well file and network agree.

    Raises:
      UserError: the network cannot be exported, or the file did not compute the same and was removed.
    """
    path = writable(path)
    made = program(model, inputs)
    described = describe(model, made, class_names, ("jax", "flax"))
    compared = pixels(images, made.shape, model.preprocessing)
    (batch,) = export.symbolic_shape("batch")
    exported = export.export(jax.jit(made.call), platforms=tuple(platforms))(
        jax.ShapeDtypeStruct((batch, *made.shape), made.dtype)
    )
    data = bytes(exported.serialize())
    found = write_verified(path, data, load, made, compared, model.preprocessing, batches=BATCHES[::2])
    write_atomically(path.with_name(path.name + METADATA), as_text(described) + "\n")
    return found


def load(path: Path) -> Run:
    """Returns what runs a file."""
    # Compiled once for each size of batch.
    return jax.jit(export.deserialize(bytearray(path.read_bytes())).call)


def writable(path: str | os.PathLike) -> Path:
    """The path as one, if its directory is there.

    Raises:
      UserError: it is not.
    """
    path = Path(path).expanduser()
    if not path.parent.is_dir():
        raise UserError(f"There is no directory {path.parent} to write {path.name} to: create it.")
    if path.is_dir():
        raise UserError(f"{path} is a directory: give the name of a file.")
    return path
