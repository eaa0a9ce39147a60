"""Writes a network's weights under the names of any source that can be read, and checks that they read back equal."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxprune.errors import UserError, unknown
from jaxprune.models.vit import VisionTransformer
from jaxprune.nn.params import Fixed, variables
from jaxprune.weights.read_names import to_timm
from jaxprune.weights.rules import to_one_spelling, to_ours, to_published
from jaxprune.weights.sources import (
    Arrays,
    aimv2,
    big_vision,
    convnext,
    efficientnet_lite,
    hugging_face,
    hugging_face_clip_siglip,
    openai_clip,
    repositories,
)


def _hugging_face(tensors: Mapping[str, np.ndarray], network: Any) -> Arrays:
    source = hugging_face_clip_siglip if hugging_face_clip_siglip.is_tower(tensors) else hugging_face
    return source.write(tensors, network)


_WRITERS: dict[str, Callable[[Mapping[str, np.ndarray], Any], Arrays]] = {
    "aimv2": aimv2.write,
    "big_vision": big_vision.write,
    "convnext": convnext.write,
    "dinov2": repositories.write_dinov2,
    "dinov3": repositories.write_dinov3,
    "efficientnet_lite": efficientnet_lite.write,
    "eva02": repositories.write_eva02,
    "hugging_face": _hugging_face,
    "openai_clip": openai_clip.write,
    "swin": repositories.write_swin,
}
# The frequencies of rotary positions that networks of a source have; those of other sources have no rotary positions.
_ROTARY = {"dinov3": "dinov3", "hugging_face": "dinov3", "eva02": "language", "openai_clip": "language"}
_NOT_VITS = ("convnext", "efficientnet_lite", "swin")
TIMM = "timm"
NAMES = (TIMM, *_WRITERS)


def suffix(names: str) -> str:
    """Returns the suffix of files with these names: Google's are `.npz`."""
    return ".npz" if names == "big_vision" else ".safetensors"


def spelled(model: Any, names: str = TIMM) -> Arrays:
    """Returns all weights of a network, or of a framework, in PyTorch's layouts or Google's.

    Args:
      names: one of `NAMES`; "timm" includes the published names of frameworks and methods.

    Raises:
      UserError: the names are unknown, have none for a tensor, or are not those of such a network.
    """
    if names == TIMM:
        tensors = to_published(model)
    elif names not in _WRITERS:
        raise unknown("names", names, NAMES)
    else:
        network = getattr(model, "encoder", model)
        if names not in _NOT_VITS:
            _require_family(network, names)
        written = _WRITERS[names](to_one_spelling(model), network)
        tensors = {name: np.array(tensor, order="C") for name, tensor in written.items()}
    _require_same(model, tensors, names)
    return tensors


def _require_family(network: Any, names: str) -> None:
    """Refuses networks of another family whose tensors have the same names and shapes."""
    style = network.style if isinstance(network, VisionTransformer) else None
    rotary = None if style is None else style.block.rotary
    if style is None or (rotary is not None and getattr(rotary, "frequencies", "tubes") != _ROTARY.get(names)):
        kind = type(network).__name__ if style is None else "vision transformer with these rotary positions"
        raise UserError(f"{names} has no names for a {kind}: write the weights under timm's names.")
    if not style.final_norm and names != "openai_clip":
        raise UserError(f"{names}'s networks end with a norm, and this one has none: write timm's names.")


def _require_same(model: Any, tensors: Arrays, names: str) -> None:
    """Checks that the tensors to be written read back as the network's.

    Raises:
      UserError: they do not.
    """
    returned, targets = to_ours(to_timm(tensors), model), variables(model)
    changed = sorted(returned.keys() - targets.keys())
    for name, variable in targets.items():
        if name not in returned and isinstance(variable, Fixed):
            continue
        if name not in returned or not np.array_equal(returned[name].tensor, np.asarray(variable[...]), equal_nan=True):
            changed.append(name)
    if changed:
        remedy = "save the network with save_model" if names == TIMM else "write the weights under timm's names"
        raise UserError(
            f"This {type(model).__name__} cannot be written under {names}'s names: {', '.join(changed[:3])} would not "
            f"read back; {remedy}."
        )
