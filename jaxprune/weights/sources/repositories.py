"""Writes the names of the repositories of DINOv2, DINOv3, EVA-02 and Swin; `timm.read` reads them."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxprune.weights.sources import (
    Arrays,
    no_network_of,
    rename,
    split_attention,
    split_gates,
    timm,
    with_cls_position,
)

_KIND = r"\.(weight|bias)"
_KEPT = (r"((?:patch_embed|norm|blocks\.\d+\.(?:norm\d|attn|ls\d|mlp)|layers)\..+|cls_token|pos_embed)", r"\1")
_PACKED = ((rf"(.*mlp)\.fc1{_KIND}", r"\1.w12.\2"), (rf"(.*mlp)\.fc2{_KIND}", r"\1.w3.\2"))
_SPLIT = (
    (rf"(.*mlp)\.fc1_g{_KIND}", r"\1.w1.\2"),
    (rf"(.*mlp)\.fc1_x{_KIND}", r"\1.w2.\2"),
    (rf"(.*mlp)\.fc2{_KIND}", r"\1.w3.\2"),
)
_EVA02 = (
    *_SPLIT,
    (rf"(.*attn)\.norm{_KIND}", r"\1.inner_attn_ln.\2"),
    (rf"(.*mlp)\.norm{_KIND}", r"\1.ffn_ln.\2"),
    (r"(.*attn)\.([qv])\.bias", r"\1.\2_bias"),
    (r"(.*attn)\.([qkv])\.weight", r"\1.\2_proj.weight"),
    (r"((?:fc_norm|head)\..+)", r"\1"),
)


def write_dinov2(tensors: Mapping[str, np.ndarray], network: Any) -> Arrays:
    """Renames tensors from timm's to DINOv2's names, and adds the mask token of its class, as zeros."""
    if not {"cls_token", "blocks.0.ls1.gamma"} <= tensors.keys():
        raise no_network_of("DINOv2")
    table = (*(_PACKED if network.style.block.mlp != "plain" else ()), ("reg_token", "register_tokens"), _KEPT)
    named = rename(with_cls_position(dict(tensors), network, "DINOv2"), table, "DINOv2")
    return {**named, "mask_token": np.zeros((1, network.embed_dim), np.float32)}


def write_dinov3(tensors: Mapping[str, np.ndarray], network: Any) -> Arrays:
    """Renames tensors from timm's to DINOv3's names, and adds zero biases of keys and the mask that marks them."""
    rotary, width = network.style.block.rotary, network.embed_dim
    if rotary is None:
        raise no_network_of("DINOv3")
    gated = network.style.block.mlp == "swiglu"
    named = {
        n: t for n, t in (split_gates(tensors) if gated else tensors).items() if not n.endswith(("q_bias", "v_bias"))
    }
    table = (*(_SPLIT if gated else ()), ("reg_token", "storage_tokens"), _KEPT)
    named = rename(named, table, "DINOv3")
    for block in range(network.depth):
        place = f"blocks.{block}.attn."
        q, v = (tensors.get(f"{place}{letter}_bias", np.zeros(width, np.float32)) for letter in "qv")
        named[f"{place}qkv.bias"] = np.concatenate([q, np.zeros_like(q), v])
        named[f"{place}qkv.bias_mask"] = np.repeat(np.asarray([1, 0, 1], np.float32), width)
    head_dim = width // network.num_heads
    exponents = 2 * np.arange(head_dim // 4, dtype=np.float32) / np.float32(head_dim / 2)
    named["rope_embed.periods"] = np.float32(rotary.temperature) ** exponents
    return {**named, "mask_token": np.zeros((1, width), np.float32)}


def write_eva02(tensors: Mapping[str, np.ndarray], network: Any) -> Arrays:
    """Renames tensors from timm's to EVA-02's names, without the tables that its class computes."""
    if "blocks.0.mlp.norm.weight" not in tensors or network.style.block.rotary is None:
        raise no_network_of("EVA-02")
    return rename(split_gates(split_attention(tensors)), (*_EVA02, _KEPT), "EVA-02")


def write_swin(tensors: Mapping[str, np.ndarray], network: Any) -> Arrays:
    """Renames tensors from timm's to Swin's own names, without the tables that its class computes."""
    if not any(re.fullmatch(r"layers\.\d+\.downsample\.reduction\.weight", name) for name in tensors):
        raise no_network_of("Swin")
    tables = timm.write(tensors, ("merging_last",))
    return rename(tables, ((rf"head\.fc{_KIND}", r"head.\1"), _KEPT), "Swin")
