"""Whose weights these are: finds the family by the tensors' names, and gives them those of timm or of MAE's repository.

Known besides those two are Hugging Face's ViT, DeiT and ViTMAE in all their spellings, the checkpoints of DINO's and
MoCo's training (v1 to v3, ResNet or ViT), the ConvNets of torchvision and Apple and EfficientNet-Lite in both its
spellings, and all of them inside of a wrapper (`module.`, `backbone.`, `encoder.`, …). Names change here, and separate
queries, keys and values become one tensor; layouts are the business of the rules.
"""

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxprune.errors import UserError

logger = logging.getLogger(__name__)


class Published(NamedTuple):
    """A tensor, and the name that its source gives it."""

    name: str
    tensor: Any


# What every ViT has, by timm and by Hugging Face: it shows how deep the network lies inside of wrappers.
PATCHES = "patch_embed.proj.weight"
_HF_PATCHES = "embeddings.patch_embeddings.projection.weight"
_PLACE = rf"((?:.+\.)?)(?:{re.escape(PATCHES)}|{re.escape(_HF_PATCHES)})"

# What training needed and nobody uses afterwards: projection heads of self-distillation, poolers.
_DINO_UNUSED = r"(?:dino_|ibot_)?head\.(?:mlp|last_layer)\..+"
# MoCo's two encoders, the one that learns and the one that follows it, and their heads: of v3, and of v1 and v2.
_MOCO = (
    ("base_encoder.", "momentum_encoder.", r"(?:head|fc)\.\d+\..+"),
    ("encoder_q.", "encoder_k.", r"fc\..+"),
)
# What else MoCo's training saves.
_MOCO_AROUND = ("predictor.", "queue")
_HF_UNUSED = r"pooler\..+|embeddings\.mask_token"

# PyTorch's batch norms count the batches they have seen, and do not use the count.
_COUNTER = "num_batches_tracked"

_HF_LAYER = (
    r"(?:(decoder)\.(?:decoder_layers|decoder_encoder\.layer)|encoder\.layer|layers)\.(\d+)\.(.+)\.(weight|bias)"
)
_HF_IN_LAYER = (
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"attention\.(?:attention\.query|q_proj)", "attn.q"),
    (r"attention\.(?:attention\.key|k_proj)", "attn.k"),
    (r"attention\.(?:attention\.value|v_proj)", "attn.v"),
    (r"attention\.(?:output\.dense|o_proj)", "attn.proj"),
    (r"intermediate\.dense|mlp\.fc1", "mlp.fc1"),
    (r"output\.dense|mlp\.fc2", "mlp.fc2"),
)
_HF_AROUND = (
    (r"embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"embeddings\.cls_token", "cls_token"),
    (r"embeddings\.distillation_token", "dist_token"),
    (r"embeddings\.position_embeddings", "pos_embed"),
    (r"layernorm", "norm"),
    (r"classifier|cls_classifier", "head"),
    (r"distillation_classifier", "head_dist"),
    (r"decoder\.mask_token", "mask_token"),
    (r"decoder\.decoder_embed", "decoder_embed"),
    (r"decoder\.decoder_pos_embed", "decoder_pos_embed"),
    (r"decoder\.decoder_norm", "decoder_norm"),
    (r"decoder\.decoder_pred", "decoder_pred"),
)

# EfficientNet-Lite0 in the spelling of efficientnet-lite-pytorch, which numbers the blocks of all stages through.
_LITE_STEM = "_conv_stem.weight"
_LITE_PLACES = tuple(f"{stage}.{index}" for stage, count in enumerate((1, 2, 2, 3, 3, 4, 1)) for index in range(count))
_LITE_AROUND = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
_LITE_IN_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
# Of a block that does not widen.
_LITE_IN_FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}


def to_timm(tensors: Mapping[str, Any]) -> dict[str, Published]:
    """Returns the tensors by timm's name (a masked autoencoder's by that of MAE's repository).

    Names of no known family stay as they are. The projection heads of DINO's and MoCo's training, the slower of MoCo's
    two encoders and the pooler of Hugging Face are left out, which the log names.

    Raises:
      UserError: the tensors are of several networks, or two of them would have one name.
    """
    counted = [name for name in tensors if name.rpartition(".")[2] != _COUNTER]
    encoder = _from_moco(counted)
    short = _unwrap(counted) if encoder is None else encoder
    unused = _DINO_UNUSED
    if _LITE_STEM in short.values():
        short = {name: _from_lite(inside, short.values()) for name, inside in short.items()}
    if _HF_PATCHES in short.values():
        short = {name: _from_hf(inside) for name, inside in short.items()}
        unused = f"{_DINO_UNUSED}|{_HF_UNUSED}"
    named: dict[str, Published] = {}
    left_out = [name for name in counted if name not in short]
    for name, inside in short.items():
        if re.fullmatch(unused, inside):
            left_out.append(name)
        elif inside in named:
            raise UserError(f"{named[inside].name} and {name} both stand for {inside}: list one of them in ignored=.")
        else:
            named[inside] = Published(name, tensors[name])
    if left_out:
        some = ", ".join(left_out[:8]) + (f" and {len(left_out) - 8} more" if len(left_out) > 8 else "")
        logger.info("left out, as only training needs them: %s", some)
    return dict(_fused(named))


def _from_moco(names: list[str]) -> dict[str, str] | None:
    """Returns {name: name in the network} of the encoder in a checkpoint of MoCo's training, None if it is not one.

    That is the one that learns, or the one that follows it where it is the only one. Heads are not of it.
    """
    bare = _without_wrapper(names)
    for *encoders, heads in _MOCO:
        there = [encoder for encoder in encoders if any(path.startswith(encoder) for path in bare.values())]
        if there and all(path.startswith((*encoders, *_MOCO_AROUND)) for path in bare.values()):
            inside = {name: path.removeprefix(there[0]) for name, path in bare.items() if path.startswith(there[0])}
            return {name: path for name, path in inside.items() if not re.fullmatch(heads, path)}
    return None


def _without_wrapper(names: list[str]) -> dict[str, str]:
    short = {name: name for name in names}
    for wrapper in ("module.", "_orig_mod."):
        if all(inside.startswith(wrapper) for inside in short.values()):
            short = {name: inside.removeprefix(wrapper) for name, inside in short.items()}
    return short


def _unwrap(names: list[str]) -> dict[str, str]:
    """Returns {name: what is left of it inside of the modules that wrap the network}."""
    short = _without_wrapper(names)
    found = [re.fullmatch(_PLACE, inside) for inside in short.values()]
    places = [match[1] for match in found if match]
    if len(places) > 1:
        raise UserError(
            f"There are {len(places)} networks, under {', '.join(map(repr, places))}: leave all but one out, for "
            f"example with ignored=({max(places, key=len) + '*'!r},)."
        )
    place = places[0] if places else ""
    # What wraps all tensors comes off all of them; beside a backbone there may be heads, whose names stay.
    for outer in [f"{part}." for part in place.split(".")[:-1]]:
        if all(inside.startswith(outer) for inside in short.values()):
            short = {name: inside.removeprefix(outer) for name, inside in short.items()}
            place = place.removeprefix(outer)
    return {name: inside.removeprefix(place) for name, inside in short.items()}


def _from_hf(name: str) -> str:
    if layer := re.fullmatch(_HF_LAYER, name):
        decoder, index, inside, kind = layer.groups()
        for theirs, timm in _HF_IN_LAYER:
            if re.fullmatch(theirs, inside):
                return f"{'decoder_' if decoder else ''}blocks.{index}.{timm}.{kind}"
    for theirs, timm in _HF_AROUND:
        if match := re.fullmatch(rf"(?:{theirs})(|\.weight|\.bias)", name):
            return timm + match[1]
    return name


def _from_lite(name: str, names: Collection[str]) -> str:
    if block := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(.+)", name):
        index, layer, kind = block.groups()
        widens = f"_blocks.{index}._expand_conv.weight" in names
        known = _LITE_IN_BLOCK if widens else _LITE_IN_FIRST
        if layer in known and int(index) < len(_LITE_PLACES):
            return f"blocks.{_LITE_PLACES[int(index)]}.{known[layer]}.{kind}"
    layer, _, kind = name.partition(".")
    return f"{_LITE_AROUND[layer]}.{kind}" if layer in _LITE_AROUND else name


def _fused(named: dict[str, Published]) -> Iterator[tuple[str, Published]]:
    """Puts queries, keys and values that are tensors of their own into one, as timm has them."""
    groups = {}
    for name in named:
        if query := re.fullmatch(r"(.*\battn\.)q(\.weight|\.bias)", name):
            parts = [f"{query[1]}{letter}{query[2]}" for letter in "qkv"]
            shapes = {np.shape(named[part].tensor) if part in named else () for part in parts}
            # Where a part is missing or of another shape, the strict check that follows names it.
            if len(shapes) == 1 and () not in shapes:
                groups[f"{query[1]}qkv{query[2]}"] = parts
    fused = {part for parts in groups.values() for part in parts}
    for name, entry in named.items():
        if name not in fused:
            yield name, entry
    for name, parts in groups.items():
        sources = [named[part] for part in parts]
        whole = np.concatenate([np.asarray(source.tensor) for source in sources])
        yield name, Published(", ".join(source.name for source in sources), whole)
