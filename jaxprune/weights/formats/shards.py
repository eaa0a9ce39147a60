"""Reads weights from a directory in Hugging Face's format: one file, or several with an index."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxprune.errors import UserError, quoted, shortened
from jaxprune.files import as_path, read_text

Tensors = dict[str, np.ndarray]
# The files to look for, in this order: of a repository with several formats, the safe one, if it was fetched.
_FILES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "open_clip_model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
    "pytorch_model.pth",
)


def holds_weights(path: Path) -> bool:
    """Returns whether a directory contains published weights, or at least their configuration."""
    return path.is_dir() and any((path / name).is_file() for name in (*_FILES, "config.json"))


def read_directory(path: Path, read_file: Callable[[Path], Tensors]) -> Tensors:
    """Reads all tensors of a directory.

    Args:
      read_file: reads one file.

    Raises:
      UserError: there are no weights, the index is damaged, or a file or a tensor that it lists is missing.
    """
    for name in _FILES:
        if (path / name).is_file():
            return _by_index(path / name, read_file) if name.endswith(".json") else read_file(path / name)
    single = [file for ending in ("*.safetensors", "*.npz") for file in sorted(path.glob(ending))]
    if len(single) == 1:
        return read_file(single[0])
    if single:
        raise UserError(f"{path} has {len(single)} weights files ({single[0].name}, …) and no index: give one of them.")
    if (path / "config.json").is_file():
        raise UserError(f"{path} has a config.json and no weights: fetch model.safetensors too.")
    raise UserError(f"{path} is a directory without weights: give a file, or load a run with load_model.")


def _by_index(index: Path, read_file: Callable[[Path], Tensors]) -> Tensors:
    try:
        places = json.loads(read_text(index))["weight_map"]
        files = sorted(set(places.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{index} cannot be read ({shortened(repr(error))}): fetch it again.") from error
    for name in files:
        if not _is_beside(name):
            raise UserError(f"{index} lists {quoted(name)}, which is not a file beside it: fetch it again.")
    missing = [name for name in files if not (index.parent / name).is_file()]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UserError(f"{index} lists {shortened(', '.join(missing[:4]))}, which {verb} missing: fetch all shards.")
    tensors: Tensors = {}
    for name in files:
        tensors.update(read_file(index.parent / name))
    lost = sorted(set(places) - set(tensors))
    if lost:
        raise UserError(
            f"{index} lists {len(lost)} tensors that its files do not contain ({shortened(lost[0])}, …): fetch them "
            "again."
        )
    return {name: tensors[name] for name in places}


def _is_beside(name: Any) -> bool:
    """Whether a name in an index is that of a file in the same directory."""
    try:
        return isinstance(name, str) and as_path(name).name == name
    except UserError:
        return False
