"""Recognises the source of weights by their tensor names, and renames them as in timm or in MAE's repository.

Every source has a file in `sources`; ConvNets of torchvision, Apple and pytorchvideo keep their own names. Names may
have the prefix of a wrapper (`module.`, `backbone.`, `encoder.`, …). `rules` converts timm's layouts.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any

from jaxprune.dynamic import dvt
from jaxprune.errors import UserError
from jaxprune.mim.parts.base import STORED
from jaxprune.weights.sources import (
    Published,
    Tensors,
    aimv2,
    big_vision,
    convnext,
    efficientnet_lite,
    hugging_face,
    hugging_face_clip_siglip,
    mmaction2,
    mmsegmentation,
    moco,
    openai_clip,
    qwen_vl,
    selectors,
    timm,
)

_log = logging.getLogger(__name__)

# A tensor of every ViT, in timm and in Hugging Face: it shows which wrappers the network is in.
PATCHES = "patch_embed.proj.weight"
_PLACE = rf"((?:.+\.)?){re.escape(PATCHES)}|{hugging_face.PATCHES}"

# Only needed for training: projection heads of self-distillation.
_DINO_UNUSED = r"(?:dino_|ibot_)?head\.(?:mlp|last_layer)\..+"

# PyTorch's batch norms count batches, but do not use the count.
_COUNTER = "num_batches_tracked"

# Sources that find their network in any wrapper, and beside other networks.
_TOWERS = (big_vision, openai_clip, hugging_face_clip_siglip, aimv2, qwen_vl)


def to_timm(tensors: Mapping[str, Any]) -> Tensors:
    """Renames tensors as in timm (those of a masked autoencoder as in MAE's repository).

    Names from unknown sources do not change. Tensors that are not part of the network are left out and logged:
    projection heads of DINO and MoCo, MoCo's momentum encoder, the text towers of CLIP and SigLIP.

    Raises:
      UserError: the tensors belong to several networks, or two of them would get the same name.
    """
    entries = {name: Published(name, tensor) for name, tensor in tensors.items() if name.rpartition(".")[2] != _COUNTER}
    left_out: list[str] = []
    for source in _TOWERS:
        if (network := source.read(entries)) is not None:
            entries, left_out = network
            break
    else:
        entries = _without_wrapper(entries)
        network = moco.read(entries)
        entries, left_out = (_unwrapped(entries), []) if network is None else network
        for source in (selectors, efficientnet_lite, convnext, mmaction2, mmsegmentation, hugging_face):
            if (network := source.read(entries)) is not None:
                entries, left_out = network[0], [*left_out, *network[1]]
                break
    heads = [name for name in entries if re.fullmatch(_DINO_UNUSED, name)]
    left_out += [entries.pop(name).name for name in heads]
    entries, unused = timm.read(entries)
    left_out += unused
    if left_out:
        listed = ", ".join(left_out[:8]) + (f" and {len(left_out) - 8} more" if len(left_out) > 8 else "")
        _log.info("left out, since only training or another network needs them: %s", listed)
    return entries


def _without_wrapper(tensors: Tensors) -> Tensors:
    for wrapper in ("module.", "_orig_mod."):
        if all(name.startswith(wrapper) for name in tensors):
            tensors = {name.removeprefix(wrapper): entry for name, entry in tensors.items()}
    return tensors


def _unwrapped(tensors: Tensors) -> Tensors:
    """Removes the prefixes of the modules that wrap the network from the names.

    Raises:
      UserError: there are several networks, or two tensors would get the same name.
    """
    matches = [re.fullmatch(_PLACE, name) for name in tensors]
    places = [match[1] or match[2] or "" for match in matches if match]
    if set(places) == set(dvt.STAGES):
        return tensors  # one network of several
    if len(places) > 1 and all(place == "" or place in STORED for place in places):
        return tensors  # a pre-training framework, with its teacher
    if len(places) > 1:
        raise UserError(
            f"There are {len(places)} networks, under {', '.join(map(repr, places))}: leave all but one out, for "
            f"example with ignored=({max(places, key=len) + '*'!r},)."
        )
    place = places[0] if places else ""
    # A prefix that all names have is removed from all. Heads beside the backbone keep their names.
    for outer in [f"{part}." for part in place.split(".")[:-1]]:
        if all(name.startswith(outer) for name in tensors):
            tensors = {name.removeprefix(outer): entry for name, entry in tensors.items()}
            place = place.removeprefix(outer)
    short: Tensors = {}
    for name, entry in tensors.items():
        inside = name.removeprefix(place)
        if inside in short:
            raise UserError(
                f"{short[inside].name} and {entry.name} both map to {inside}: list one of them in ignored=."
            )
        short[inside] = entry
    return short
