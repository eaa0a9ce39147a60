"""Export to StableHLO: one file for any batch size, with the weights inside, which plain JAX loads."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from jaxprune.errors import UserError, unknown
from jaxprune.export.exported_function import Program, as_text, describe, program
from jaxprune.export.verify import Run, Verified, pixels, write_verified
from jaxprune.files import as_path, write_atomically

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
METADATA = ".json"  # suffix appended to the file's name

_log = logging.getLogger(__name__)


def stablehlo(
    model: Any,
    path: str | os.PathLike,
    *,
    inputs: str = "uint8",
    class_names: Sequence[str] = (),
    images: Sequence[Any] | np.ndarray | None = None,
    platforms: Sequence[str] = PLATFORMS,
) -> Verified:
    """Writes a network, dense or reduced, as a StableHLO file, with its metadata in a JSON file next to it.

    `jax.export.deserialize(Path(path).read_bytes()).call(images)` returns (logits, kept_0, …) for any batch size,
    without this package; `kept_i` (b, k) are the patches that step i of a plan keeps, -1 for a row that is not a single
    patch. It computes in float32. The file is then read again and compared with the network, see
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
      path: path of the file, which is overwritten; the metadata is at `path` + ".json".
      inputs: the file's input, RGB (b, height, width, 3), resized and cropped according to `model.preprocessing`:
        "uint8" or "float32" are pixels from 0 to 255, which the file normalises; "normalized" is normalised float32.
      class_names: class names of a classifier, for the metadata.
      images: images for the comparison: picture files or uint8 arrays (h, w, 3); by default eight of the built-in
        scenes.
      platforms: the platforms that the file can run on, by JAX's names.

    Returns:
      How well file and network agree.

    Raises:
      UserError: the network cannot be exported, a platform is unknown, or the file's results differ, in which case it
        is removed.
    """
    path, platforms = writable(path), checked(platforms)
    network = program(model, inputs)
    described = describe(model, network, class_names, ("jax", "flax"))
    compared = pixels(images, network.shape, model.preprocessing)
    _log.info("%s: tracing the network for %s.", path.name, ", ".join(platforms))
    data = serialized(network, platforms)
    differences = write_verified(path, data, load, network, compared, model.preprocessing)
    write_atomically(path.with_name(path.name + METADATA), as_text(described) + "\n")
    return differences


def checked(platforms: Sequence[str]) -> tuple[str, ...]:
    """Checks the platforms that a file is written for, one of which is that of this machine.

    Raises:
      UserError: one is unknown, or the file could not be compared with the network here.
    """
    platforms = (platforms,) if isinstance(platforms, str) else tuple(platforms)
    for platform in platforms:
        if platform not in PLATFORMS:
            raise unknown("platform", platform, PLATFORMS)
    backend = jax.default_backend()
    runnable = PLATFORMS[1:3] if backend == "gpu" else (backend,)  # JAX calls CUDA and ROCm so
    if not set(platforms).intersection(runnable):
        raise UserError(
            f"platforms={platforms} leaves out this machine's, {backend}, on which the file is compared with the "
            "network: add it."
        )
    return platforms


def serialized(network: Program, platforms: Sequence[str]) -> bytes:
    """Returns a program for any batch size as the bytes of a file."""
    (batch,) = export.symbolic_shape("batch")
    exported = export.export(jax.jit(network.call), platforms=tuple(platforms))(*network.specs(batch))
    return bytes(exported.serialize())


def load(path: Path) -> Run:
    """Returns a function that runs a file."""
    # Compiled once for each batch size.
    return jax.jit(export.deserialize(bytearray(path.read_bytes())).call)


def writable(path: str | os.PathLike) -> Path:
    """Returns the path as a `Path`, after checking that its directory exists.

    Raises:
      UserError: it does not exist.
    """
    path = as_path(path)
    if not path.parent.is_dir():
        raise UserError(f"There is no directory {path.parent} to write {path.name} to: create it.")
    if path.is_dir():
        raise UserError(f"{path} is a directory: give the name of a file.")
    return path
