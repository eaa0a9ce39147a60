"""The names of the image towers of CLIP, SigLIP and AIMv2 in Hugging Face's transformers."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxprune.weights.sources import (
    Arrays,
    Published,
    Tensors,
    back,
    inside,
    no_network_of,
    rename,
    renamed,
    split_attention,
    split_gates,
    with_cls_position,
)
from jaxprune.weights.sources.openai_clip import join_pooling, split_pooling, without_bias

_KIND = r"\.(weight|bias)"
_PATCHES = r"((?:.+\.)?)embeddings\.(?:patch_embedding|patch_embed)\.weight"
# `SiglipVisionConfig`'s `hidden_act`, "gelu_pytorch_tanh", by its name in timm.
SIGLIP_ACTIVATION = "gelu_tanh"
_SIGLIP_PATCHES = r"((?:.+\.)?)embeddings\.patch_embedding\.weight"
_SIGLIP_EMBEDDINGS = ("patch_embedding.bias", "position_embedding.weight")
_LAYER = r"encoder\.layers\.(\d+)\."
_NAMES = (
    (rf"embeddings\.(?:patch_embedding|patch_embed){_KIND}", r"patch_embed.proj.\1"),
    (r"embeddings\.class_embedding", "cls_token"),
    (r"embeddings\.position_embedding\.weight", "pos_embed"),
    (rf"embeddings\.rms_norm{_KIND}", r"patch_embed.norm.\1"),
    (rf"pre_layrnorm{_KIND}", r"norm_pre.\1"),
    (rf"(?:post_layernorm|rms_norm){_KIND}", r"norm.\1"),
    (r"head\.probe", "attn_pool.latent"),
    (r"head\.attention\.in_proj_(weight|bias)", r"attn_pool.qkv.\1"),
    (rf"head\.attention\.out_proj{_KIND}", r"attn_pool.proj.\1"),
    (rf"head\.layernorm{_KIND}", r"attn_pool.norm.\1"),
    (rf"head\.mlp\.(fc[12]){_KIND}", r"attn_pool.mlp.\1.\2"),
    (rf"{_LAYER}(?:layer_norm|rms_norm)([12]){_KIND}", r"blocks.\1.norm\2.\3"),
    (rf"{_LAYER}(?:self_attn|attention)\.([qkv])_proj{_KIND}", r"blocks.\1.attn.\2.\3"),
    (rf"{_LAYER}(?:self_attn|attention)\.out_proj{_KIND}", r"blocks.\1.attn.proj.\2"),
    (rf"{_LAYER}mlp\.(fc[12]){_KIND}", r"blocks.\1.mlp.\2.\3"),
    (rf"{_LAYER}ffn\.gate_proj{_KIND}", r"blocks.\1.mlp.fc1_g.\2"),
    (rf"{_LAYER}ffn\.up_proj{_KIND}", r"blocks.\1.mlp.fc1_x.\2"),
    (rf"{_LAYER}ffn\.down_proj{_KIND}", r"blocks.\1.mlp.fc2.\2"),
)


def is_siglip(names: Iterable[str]) -> bool:
    """Whether names of tensors are those of transformers' SigLIP, which computes with `SIGLIP_ACTIVATION`."""
    present = set(names)
    places = [match[1] for name in present if (match := re.fullmatch(_SIGLIP_PATCHES, name))]
    embeddings = {f"{place}embeddings.{part}" for place in places for part in _SIGLIP_EMBEDDINGS}
    besides = {f"{place}embeddings.class_embedding" for place in places}  # CLIP's
    return len(places) == 1 and embeddings <= present and not besides & present


def read(tensors: Tensors) -> tuple[Tensors, list[str]] | None:
    """Returns the tensors by timm's names, and the names of the others; None if these are not such towers."""
    places = [match[1] for name in tensors if (match := re.fullmatch(_PATCHES, name))]
    if len(places) != 1:
        return None
    tower, rest = inside(tensors, places[0])
    renamed_tensors: Tensors = {}
    for name, (published, tensor) in tower.items():
        timm = renamed(name, _NAMES) or name
        if name == "embeddings.position_ids":
            rest.append(published)
            continue
        if timm == "cls_token" and np.ndim(tensor) == 1:
            tensor = np.asarray(tensor)[None, None]
        elif timm == "pos_embed" and np.ndim(tensor) == 2:
            tensor = np.asarray(tensor)[None]
        renamed_tensors[timm] = Published(published, tensor)
    # CLIP's projection after pooling has no bias; in timm it is the classifier.
    projection = next((name for name in rest if name.endswith("visual_projection.weight")), None)
    if projection is not None:
        rest.remove(projection)
        weights = np.asarray(tensors[projection].tensor)
        renamed_tensors["head.weight"] = tensors[projection]
        renamed_tensors["head.bias"] = Published(tensors[projection].name, np.zeros(len(weights), weights.dtype))
    return split_pooling(renamed_tensors), rest


_AIMV2 = ("patch_embed", "rms_norm", "attention")
_PROJECTION = (r"head\.weight", "visual_projection.weight")


def is_tower(tensors: Mapping[str, np.ndarray]) -> bool:
    """Whether tensors by timm's names are those of such a tower: other image networks have a CLS token."""
    return "norm_pre.weight" in tensors or ("cls_token" not in tensors and tensors["patch_embed.proj.weight"].ndim == 4)


def write(tensors: Mapping[str, np.ndarray], network: Any) -> Arrays:
    """Renames a tower's tensors from timm's to Hugging Face's names, with the prefix `vision_model.` of its files."""
    split = split_attention(join_pooling(tensors))
    if "patch_embed.norm.weight" in tensors:
        # `ffn.down_proj` must be found before the name of CLIP's.
        return _unbatched(rename(split_gates(split), back(_NAMES[::-1], _AIMV2), "Hugging Face's AIMv2"))
    clip = "norm_pre.weight" in tensors
    if clip and "attn_pool.latent" in tensors:
        raise no_network_of("Hugging Face's CLIP")
    table, whose = back(_NAMES), "Hugging Face's CLIP" if clip else "Hugging Face's SigLIP"
    split = with_cls_position(without_bias(split), network, whose) if clip else split
    renamed_tensors = rename(split, (*table, *((_PROJECTION,) if clip else ())), whose)
    outside = "visual_projection."
    return _unbatched(
        {n if n.startswith(outside) else f"vision_model.{n}": tensor for n, tensor in renamed_tensors.items()}
    )


def _unbatched(tensors: Mapping[str, np.ndarray]) -> Arrays:
    """Removes the leading axes of length 1 that timm's class token and positions have."""
    layouts = {"class_embedding": lambda t: t[0, 0], "weight": lambda t: t[0] if t.ndim == 3 else t}
    return {name: layouts.get(name.rpartition(".")[2], lambda t: t)(tensor) for name, tensor in tensors.items()}
