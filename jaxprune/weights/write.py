"""Writes a network's weights under the names and in the layouts that other code expects."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from jaxprune.errors import UserError
from jaxprune.files import as_path, write_atomically
from jaxprune.weights.write_names import TIMM, spelled, suffix


def save_pretrained(model: Any, path: str | os.PathLike, *, names: str = TIMM, overwrite: bool = False) -> None:
    """Writes a network's weights as `.safetensors`, under the names and in the layouts that other code expects.

    Those are timm's; of a pre-training framework (position tables included) and of a token-reduction method the names
    that were published with it. `load_pretrained` reads the file back to the same bits.

    Args:
      names: whose names: "timm", "hugging_face", "openai_clip" (OpenAI, OpenCLIP, Perception Encoder: the image tower),
        or of a repository: "dinov2", "dinov3", "eva02", "aimv2", "swin", "convnext", "efficientnet_lite", "big_vision"
        (Google's, with its layouts, as `.npz`).

    Raises:
      UserError: the file exists, or its name is not a `.safetensors`; or the names do not fit the network.
    """
    path = writable(path, overwrite, names)
    tensors = spelled(model, names)
    if path.suffix == ".npz":
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **tensors)
        write_atomically(path, buffer.getvalue())
    else:
        # Loaders of Hugging Face refuse a file that does not name the framework of its layouts.
        write_atomically(path, save(tensors, metadata={"format": "pt"}))


def writable(path: str | os.PathLike, overwrite: bool, names: str) -> Path:
    """Returns the path of a weights file that can be written.

    Raises:
      UserError: it exists, has no directory, or another ending than the names need.
    """
    path, kind = as_path(path), suffix(names)
    if path.suffix != kind:
        raise UserError(f"{path} would not be a {kind}: that is the one format written here for the names {names!r}.")
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists already: choose another name, or overwrite it.")
    if not path.parent.is_dir():
        raise UserError(f"There is no directory {path.parent} to write {path.name} to: create it.")
    return path
