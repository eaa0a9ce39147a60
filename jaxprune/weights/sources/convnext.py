"""The names of ConvNeXt and ConvNeXt V2 in their repositories."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxprune.weights.sources import Arrays, Tensors, back, rename, renamed

_KIND = r"\.(weight|bias)"
_NAMES = (
    (rf"downsample_layers\.0\.([01]){_KIND}", r"stem.\1.\2"),
    (rf"downsample_layers\.(\d+)\.([01]){_KIND}", r"stages.\1.downsample.\2.\3"),
    (rf"stages\.(\d+)\.(\d+)\.dwconv{_KIND}", r"stages.\1.blocks.\2.conv_dw.\3"),
    (rf"stages\.(\d+)\.(\d+)\.norm{_KIND}", r"stages.\1.blocks.\2.norm.\3"),
    (rf"stages\.(\d+)\.(\d+)\.pwconv([12]){_KIND}", r"stages.\1.blocks.\2.mlp.fc\3.\4"),
    (r"stages\.(\d+)\.(\d+)\.grn\.gamma", r"stages.\1.blocks.\2.mlp.grn.weight"),
    (r"stages\.(\d+)\.(\d+)\.grn\.beta", r"stages.\1.blocks.\2.mlp.grn.bias"),
    (r"stages\.(\d+)\.(\d+)\.gamma", r"stages.\1.blocks.\2.gamma"),
    (rf"norm{_KIND}", r"head.norm.\1"),
    (rf"head{_KIND}", r"head.fc.\1"),
)


def read(tensors: Tensors) -> tuple[Tensors, list[str]] | None:
    """Returns the tensors by timm's names, and no others; None if these are other files."""
    if "downsample_layers.0.0.weight" not in tensors:
        return None
    timms: Tensors = {}
    for name, entry in tensors.items():
        timm = renamed(name, _NAMES) or name
        # V2 stores the parameters of its response norm with the axes of a map.
        flat = np.reshape(entry.tensor, -1) if re.search(r"\.grn\.", timm) else entry.tensor
        timms[timm] = entry._replace(tensor=flat)
    return timms, []


def write(tensors: Mapping[str, np.ndarray], network: Any) -> Arrays:
    """Renames tensors from timm's names to those of the two repositories."""
    renamed_tensors = rename(tensors, back(_NAMES), "ConvNeXt")
    return {name: t.reshape(1, 1, 1, -1) if re.search(r"\.grn\.", name) else t for name, t in renamed_tensors.items()}
