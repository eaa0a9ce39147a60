"""The names of ViT, DeiT, Pixio, ViTMAE, BEiT, DINOv2, DINOv3 and V-JEPA 2 in all versions of transformers."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxprune.weights.sources import (
    Arrays,
    Tensors,
    back,
    inside,
    rename,
    renamed,
    split_attention,
    split_gates,
    with_cls_position,
)

PATCHES = r"((?:.+\.)?)embeddings\.patch_embeddings\.(?:projection\.|proj\.)?weight"

_KIND = r"\.(weight|bias)"
_LAYER = r"(?:encoder\.|model\.)?(?:layer|layers)\.(\d+)\."
_DECODER = r"decoder\.(?:decoder_layers|decoder_encoder\.layer)\.(\d+)\."


def _in_layer(layer: str, block: str) -> tuple[tuple[str, str], ...]:
    """The names inside a block, of the encoder or the decoder."""
    return (
        (rf"{layer}(?:layernorm_before|norm1){_KIND}", rf"{block}.\1.norm1.\2"),
        (rf"{layer}(?:layernorm_after|norm2){_KIND}", rf"{block}.\1.norm2.\2"),
        (rf"{layer}attention\.(?:attention\.query|query|q_proj){_KIND}", rf"{block}.\1.attn.q.\2"),
        (rf"{layer}attention\.attention\.([qv])_bias", rf"{block}.\1.attn.\2_bias"),
        (rf"{layer}attention\.(?:attention\.key|key|k_proj){_KIND}", rf"{block}.\1.attn.k.\2"),
        (rf"{layer}attention\.(?:attention\.value|value|v_proj){_KIND}", rf"{block}.\1.attn.v.\2"),
        (rf"{layer}attention\.(?:output\.dense|o_proj|proj){_KIND}", rf"{block}.\1.attn.proj.\2"),
        (
            rf"{layer}(?:attention\.attention\.)?relative_position_bias\.relative_position_bias_table",
            rf"{block}.\1.attn.relative_position_bias_table",
        ),
        (rf"{layer}layer_scale([12])\.lambda1", rf"{block}.\1.ls\2.gamma"),
        (rf"{layer}lambda_([12])", rf"{block}.\1.ls\2.gamma"),
        (rf"{layer}mlp\.gate_proj{_KIND}", rf"{block}.\1.mlp.fc1_g.\2"),
        (rf"{layer}(?:intermediate\.dense|mlp\.fc1|mlp\.weights_in){_KIND}", rf"{block}.\1.mlp.fc1.\2"),
        (rf"{layer}(?:output\.dense|mlp\.fc2|mlp\.weights_out|mlp\.down_proj){_KIND}", rf"{block}.\1.mlp.fc2.\2"),
    )


_NAMES = (
    *_in_layer(_LAYER, "blocks"),
    *_in_layer(_DECODER, "decoder_blocks"),
    (r"embeddings\.patch_embeddings\.(?:projection\.|proj\.)?(weight|bias)", r"patch_embed.proj.\1"),
    (r"embeddings\.cls_token", "cls_token"),
    (r"embeddings\.register_tokens", "reg_token"),
    (r"embeddings\.distillation_token", "dist_token"),
    (r"embeddings\.position_embeddings", "pos_embed"),
    (rf"pooler\.layernorm{_KIND}", r"fc_norm.\1"),
    (rf"(?:layernorm|norm){_KIND}", r"norm.\1"),
    (rf"(?:classifier|cls_classifier){_KIND}", r"head.\1"),
    (rf"distillation_classifier{_KIND}", r"head_dist.\1"),
    (r"decoder\.mask_token", "mask_token"),
    (r"decoder\.decoder_pos_embed", "decoder_pos_embed"),
    (rf"decoder\.(decoder_embed|decoder_norm|decoder_pred){_KIND}", r"\1.\2"),
)
# V-JEPA 2's classifiers need their pooler, which is not supported: it stays, so that the strict check reports it.
_UNUSED = r"pooler\.(?!query_tokens|cross_attention|self_attention).+|embeddings\.mask_token|predictor\..+"


def read(tensors: Tensors) -> tuple[Tensors, list[str]] | None:
    """Returns the tensors by timm's names, and the names of those only for training; None if these are other files."""
    places = [match[1] for name in tensors if (match := re.fullmatch(PATCHES, name))]
    if len(places) != 1:
        return None
    # The names of classifiers and of ViTMAE's decoder do not have the prefix of the network.
    network, rest = inside(tensors, places[0])
    gated = any(re.fullmatch(rf"{_LAYER}mlp\.gate_proj\.weight", name) for name in network)
    up = (rf"{_LAYER}mlp\.up_proj{_KIND}", rf"blocks.\1.mlp.{'fc1_x' if gated else 'fc1'}.\2")
    network_tensors: Tensors = {}
    unused = []
    for name, entry in {**network, **{name: tensors[name] for name in rest}}.items():
        timm = renamed(name, (up, *_NAMES))
        if timm is None and re.fullmatch(_UNUSED, name):
            unused.append(entry.name)
        else:
            network_tensors[timm or name] = entry
    return network_tensors, unused


# The alternatives above that files of a family have, where not the first; and rows that precede those above.
_DINO = ("norm1", "norm2")
_PREFERRED: dict[str, tuple[str, ...]] = {
    "deit": ("cls_classifier",),
    "dinov2": (*_DINO, "mlp.fc1", "mlp.fc2"),
    "pixio": (*_DINO, "mlp.fc1", "mlp.fc2"),
    "dinov2_giant": (*_DINO, "mlp.weights_in", "mlp.weights_out"),
    "dinov3": (*_DINO, "norm", "mlp.down_proj", "q_proj", "k_proj", "v_proj", "o_proj"),
}
_BEFORE: dict[str, tuple[tuple[str, str], ...]] = {
    "beit": ((rf"{_LAYER}lambda_([12])", r"blocks.\1.ls\2.gamma"),),
    "videomae": (
        (rf"fc_norm{_KIND}", r"fc_norm.\1"),
        (rf"{_LAYER}attention\.attention\.([qv])_bias", r"blocks.\1.attn.\2.bias"),
    ),
    "dinov3": (
        (r"embeddings\.patch_embeddings\.(weight|bias)", r"patch_embed.proj.\1"),
        (rf"{_LAYER}mlp\.up_proj{_KIND}", r"blocks.\1.mlp.fc1_x.\2"),
        (rf"{_LAYER}mlp\.up_proj{_KIND}", r"blocks.\1.mlp.fc1.\2"),
    ),
}
_OUTSIDE = ("classifier.", "cls_classifier.", "distillation_classifier.", "decoder.", "fc_norm.")


def write(tensors: Mapping[str, np.ndarray], network: Any) -> Arrays:
    """Renames tensors from timm's names to those of Hugging Face's files, which the newest transformers reads too.

    DINO's networks get a mask token of zeros, which their classes expect.

    Raises:
      UserError: the family's class has no name for a tensor: DINO's classes have no classifier on the CLS token alone,
        and only BEiT's has a norm after pooling.
    """
    parts, whose = split_attention(tensors), "ViT"
    if any(name.startswith("decoder_") for name in tensors):
        kind, whose = "vit", "ViTMAE"
    elif tensors["patch_embed.proj.weight"].ndim == 5:
        kind, whose = "videomae", "VideoMAE"
        # Its class computes the positions.
        parts = {name: tensor for name, tensor in parts.items() if name != "pos_embed"}
    elif network.style.block.rotary is not None:
        kind, whose = "dinov3", "DINOv3"
        parts = split_gates(parts) if network.style.block.mlp == "swiglu" else parts
    elif "blocks.0.attn.relative_position_bias_table" in tensors:
        kind, whose = "beit", "BEiT"
    elif "blocks.0.ls1.gamma" in tensors:
        kind, whose = "dinov2" if network.style.block.mlp == "plain" else "dinov2_giant", "DINOv2"
    elif tensors.get("cls_token", np.zeros((1, 1, 1))).shape[1] > 1:
        kind, whose = "pixio", "Pixio"
    else:
        kind, whose = ("deit", "DeiT") if "dist_token" in tensors else ("vit", "ViT")
    whose = f"Hugging Face's {whose}"
    parts = with_cls_position(parts, network, whose)
    table = back((*_BEFORE.get(kind, ()), *_NAMES), _PREFERRED.get(kind, ()))
    table = tuple(row for row in table if not _unknown(row[1], kind))
    named = rename(parts, table, whose)
    if kind.startswith("dino"):
        ones = (1, 1) if kind == "dinov3" else (1,)
        named["embeddings.mask_token"] = np.zeros((*ones, network.embed_dim), np.float32)
    if kind == "dinov3":
        named = {name.removeprefix("encoder."): tensor for name, tensor in named.items()}
    # With a classifier or a decoder, the network's names have a prefix.
    place = f"{kind}." if any(name.startswith(_OUTSIDE) for name in named) else ""
    return {name if name.startswith(_OUTSIDE) else place + name: tensor for name, tensor in named.items()}


def _unknown(name: str, kind: str) -> bool:
    """Whether a family does not have tensors of a name."""
    if name.startswith("pooler.") and kind != "beit":
        return True
    return "classifier." in name and kind.startswith(("dino", "pixio"))
