"""The names of EfficientNet-Lite0 in efficientnet-lite-pytorch, which numbers all blocks consecutively."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxprune.weights.sources import Arrays, Tensors, rename

_STEM = "_conv_stem.weight"
_PLACES = tuple(f"{stage}.{index}" for stage, count in enumerate((1, 2, 2, 3, 3, 4, 1)) for index in range(count))
_AROUND = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
_IN_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
# Names in a block without expansion.
_IN_FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}


def read(tensors: Tensors) -> tuple[Tensors, list[str]] | None:
    """Returns the tensors by timm's names, and no others; None if these are other files."""
    if _STEM not in tensors:
        return None
    return {_timm(name, tensors): entry for name, entry in tensors.items()}, []


def _timm(name: str, names: Tensors) -> str:
    if block := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(.+)", name):
        index, layer, kind = block.groups()
        layers = _IN_BLOCK if f"_blocks.{index}._expand_conv.weight" in names else _IN_FIRST
        if layer in layers and int(index) < len(_PLACES):
            return f"blocks.{_PLACES[int(index)]}.{layers[layer]}.{kind}"
    layer, _, kind = name.partition(".")
    return f"{_AROUND[layer]}.{kind}" if layer in _AROUND else name


def write(tensors: Mapping[str, np.ndarray], network: Any) -> Arrays:
    """Renames tensors from timm's names to those of efficientnet-lite-pytorch."""
    table = [(rf"{timm}\.(.+)", rf"{source}.\1") for source, timm in _AROUND.items()]
    for index, place in enumerate(_PLACES):
        layers = _IN_BLOCK if f"blocks.{place}.conv_pwl.weight" in tensors else _IN_FIRST
        table += [
            (rf"blocks\.{re.escape(place)}\.{timm}\.(.+)", rf"_blocks.{index}.{source}.\1")
            for source, timm in layers.items()
        ]
    return rename(tensors, table, "efficientnet-lite-pytorch")
