"""The names of AIMv2 in Apple's repository."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxprune.weights.sources import Arrays, Tensors, back, inside, no_network_of, rename, renamed, split_gates

_NAMES = (
    (r"preprocessor\.patchifier\.(proj|norm)\.(weight|bias)", r"patch_embed.\1.\2"),
    (r"preprocessor\.pos_embed", "pos_embed"),
    (r"trunk\.blocks\.(\d+)\.norm_([12])\.(weight|bias)", r"blocks.\1.norm\2.\3"),
    (r"trunk\.blocks\.(\d+)\.mlp\.fc1\.(weight|bias)", r"blocks.\1.mlp.fc1_g.\2"),
    (r"trunk\.blocks\.(\d+)\.mlp\.fc3\.(weight|bias)", r"blocks.\1.mlp.fc1_x.\2"),
    (r"trunk\.blocks\.(\d+)\.(.+)", r"blocks.\1.\2"),
    (r"trunk\.post_trunk_norm\.(weight|bias)", r"norm.\1"),
)


def read(tensors: Tensors) -> tuple[Tensors, list[str]] | None:
    """Returns the tensors by timm's names, and the names of the others; None if these are other files."""
    patches = r"((?:.+\.)?)preprocessor\.patchifier\.proj\.weight"
    places = [match[1] for name in tensors if (match := re.fullmatch(patches, name))]
    if len(places) != 1:
        return None
    tower, rest = inside(tensors, places[0])
    return {renamed(name, _NAMES) or name: entry for name, entry in tower.items()}, rest


def write(tensors: Mapping[str, np.ndarray], network: Any) -> Arrays:
    """Renames tensors from timm's to Apple's names."""
    if "patch_embed.norm.weight" not in tensors:
        raise no_network_of("AIMv2")
    return rename(split_gates(tensors), back(_NAMES), "AIMv2")
