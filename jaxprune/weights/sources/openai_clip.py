"""The names of CLIP's image tower in OpenAI's code and OpenCLIP, and of Meta's Perception Encoder."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxprune.errors import UserError
from jaxprune.weights.sources import (
    Arrays,
    Published,
    Tensors,
    back,
    inside,
    no_network_of,
    rename,
    renamed,
    with_cls_position,
)

_AROUND = (
    (r"conv1\.(weight|bias)", r"patch_embed.proj.\1"),
    (r"class_embedding", "cls_token"),
    (r"positional_embedding", "pos_embed"),
    (r"ln_pre\.(weight|bias)", r"norm_pre.\1"),
    (r"ln_post\.(weight|bias)", r"norm.\1"),
    (r"proj", "head.weight"),
    (r"attn_pool\.probe", "attn_pool.latent"),
    (r"attn_pool\.attn\.in_proj_(weight|bias)", r"attn_pool.qkv.\1"),
    (r"attn_pool\.attn\.out_proj\.(weight|bias)", r"attn_pool.proj.\1"),
    (r"attn_pool\.layernorm\.(weight|bias)", r"attn_pool.norm.\1"),
    (r"attn_pool\.mlp\.c_fc\.(weight|bias)", r"attn_pool.mlp.fc1.\1"),
    (r"attn_pool\.mlp\.c_proj\.(weight|bias)", r"attn_pool.mlp.fc2.\1"),
    (r"transformer\.resblocks\.(\d+)\.ln_([12])\.(weight|bias)", r"blocks.\1.norm\2.\3"),
    (r"transformer\.resblocks\.(\d+)\.ls_([12])\.gamma", r"blocks.\1.ls\2.gamma"),
    (r"transformer\.resblocks\.(\d+)\.attn\.in_proj_(weight|bias)", r"blocks.\1.attn.qkv.\2"),
    (r"transformer\.resblocks\.(\d+)\.attn\.out_proj\.(weight|bias)", r"blocks.\1.attn.proj.\2"),
    (r"transformer\.resblocks\.(\d+)\.mlp\.c_fc\.(weight|bias)", r"blocks.\1.mlp.fc1.\2"),
    (r"transformer\.resblocks\.(\d+)\.mlp\.c_proj\.(weight|bias)", r"blocks.\1.mlp.fc2.\2"),
)


def read(tensors: Tensors) -> tuple[Tensors, list[str]] | None:
    """Returns the tensors by timm's names, and the names of the text tower's; None if these are other files."""
    towers = [match[1] for name in tensors if (match := re.fullmatch(r"((?:.+\.)?)conv1\.weight", name))]
    towers = [tower for tower in towers if f"{tower}positional_embedding" in tensors]
    if len(towers) != 1:
        return None
    tower, rest = inside(tensors, towers[0])
    renamed_tensors: Tensors = {}
    for name, (published, tensor) in tower.items():
        timm = renamed(name, _AROUND) or name
        if timm == "cls_token" and np.ndim(tensor) == 1:
            tensor = np.asarray(tensor)[None, None]
        elif timm == "pos_embed" and np.ndim(tensor) == 2:
            tensor = np.asarray(tensor)[None]
        elif timm == "head.weight" and np.ndim(tensor) == 2:
            # The projection multiplies from the right and has no bias.
            tensor = np.asarray(tensor).T
            renamed_tensors["head.bias"] = Published(published, np.zeros(tensor.shape[0], np.asarray(tensor).dtype))
        renamed_tensors[timm] = Published(published, tensor)
    return split_pooling(renamed_tensors), rest


def split_pooling(tensors: Tensors) -> Tensors:
    """Splits queries from keys and values in attention pooling, as timm stores them."""
    for kind in ("weight", "bias"):
        qkv = tensors.pop(f"attn_pool.qkv.{kind}", None)
        if qkv is not None:
            rows = len(np.asarray(qkv.tensor)) // 3
            tensors[f"attn_pool.q.{kind}"] = qkv._replace(tensor=np.asarray(qkv.tensor)[:rows])
            tensors[f"attn_pool.kv.{kind}"] = qkv._replace(tensor=np.asarray(qkv.tensor)[rows:])
    return tensors


def write(tensors: Mapping[str, np.ndarray], network: Any) -> Arrays:
    """Renames an image tower's tensors from timm's to OpenAI's names, without a text tower."""
    if "norm_pre.weight" not in tensors:
        raise no_network_of("CLIP")
    renamed_tensors = rename(
        with_cls_position(join_pooling(without_bias(tensors)), network, "CLIP"), back(_AROUND), "CLIP"
    )
    layouts = {"class_embedding": lambda t: t[0, 0], "positional_embedding": lambda t: t[0], "proj": lambda t: t.T}
    return {f"visual.{name}": layouts.get(name, lambda t: t)(tensor) for name, tensor in renamed_tensors.items()}


def without_bias(tensors: Mapping[str, np.ndarray]) -> Arrays:
    """Leaves out the bias of the head, which CLIP's projection does not have.

    Raises:
      UserError: it is not zero.
    """
    if np.any(tensors.get("head.bias", 0)):
        raise UserError("CLIP has no bias for head.bias, which is not zero: write the weights under timm's names.")
    return {name: tensor for name, tensor in tensors.items() if name != "head.bias"}


def join_pooling(tensors: Mapping[str, np.ndarray]) -> Arrays:
    """Joins queries, keys and values of attention pooling, as PyTorch's own attention stores them."""
    joined = dict(tensors)
    for kind in ("weight", "bias"):
        if f"attn_pool.q.{kind}" in joined:
            parts = [joined.pop(f"attn_pool.{part}.{kind}") for part in ("q", "kv")]
            joined[f"attn_pool.qkv.{kind}"] = np.concatenate(parts)
    return joined
