"""Reads the architecture of a plain vision transformer, or of a framework around one, off the shapes of its weights."""

import logging
import math
import re
from collections.abc import Mapping
from typing import Any

from jaxprune import mim
from jaxprune.errors import UserError, shortened
from jaxprune.weights.guess_network import network_similarity
from jaxprune.weights.read_names import PATCHES
from jaxprune.weights.sources import Published

_log = logging.getLogger(__name__)

# What the sizes of a vision transformer are read from.
_NEEDED = {PATCHES, "pos_embed", "blocks.0.mlp.fc1.weight"}
_RANKS = dict.fromkeys(("pos_embed", "cls_token", "dist_token", "reg_token"), 3) | {
    PATCHES: 4,
    **dict.fromkeys(("blocks.0.mlp.fc1.weight", "head.weight", "decoder_embed.weight"), 2),
    **dict.fromkeys(("agg.weight", "agg.conv_dw.weight"), 4),
}


def architecture(tensors: Mapping[str, Published], source: str) -> tuple[str, dict[str, Any]]:
    """Returns the kind and the arguments of the network that weights under timm's names are of.

    They are for `checkpoints.build.build`. Shapes do not depend on the number of heads: one is assumed.

    Args:
      source: name of the weights in error messages.

    Raises:
      UserError: they are of no ViT and no pre-training framework, or made for a grid that is not square.
    """
    shapes = {name: entry.tensor.shape for name, entry in tensors.items()}
    width = shapes.get(PATCHES, (0,))[:1]
    # The shapes are indexed below. A width that a block does not share would be a network far beyond the file.
    plausible = all(
        len(shapes[name]) == rank and min(shapes[name]) > 0 for name, rank in _RANKS.items() if name in shapes
    )
    framework = mim.recognise(shapes) if plausible else None
    if framework is not None and "embed_dim" in framework:
        return "mim", framework  # with its encoder
    if not plausible or not shapes.keys() >= _NEEDED or shapes["blocks.0.mlp.fc1.weight"][1:] != width:
        names = ", ".join(map(shortened, list(shapes)[:3]))
        of_another = f": {network_similarity(tensors)}; name its network with model=" if PATCHES in shapes else ""
        raise UserError(
            f"{source} holds no plain vision transformer by the names of timm, MAE, DINO or Hugging Face "
            f"({names}, …){of_another}."
        )
    if any(name.startswith(("norm_pre.", "attn_pool.", "patch_embed.norm.")) for name in shapes) or (
        "blocks.0.attn.q_bias" in shapes or "blocks.0.mlp.norm.weight" in shapes
    ):
        raise UserError(
            f"{source} are weights of no plain vision transformer: {network_similarity(tensors)}; name it with model=."
        )
    width, channels, *patch_size = shapes[PATCHES]
    arguments = {
        "patch_size": tuple(patch_size),
        "in_chans": channels,
        "embed_dim": width,
        "depth": _count(shapes, "blocks"),
        "num_heads": 1,
        # The half keeps the product with the width from being rounded to one less.
        "mlp_ratio": (shapes["blocks.0.mlp.fc1.weight"][0] + 0.5) / width,
    }
    prefix = sum(shapes[name][1] for name in ("cls_token", "dist_token", "reg_token") if name in shapes)
    rows = shapes["pos_embed"][1]
    no_embed_class = math.isqrt(rows) ** 2 == rows
    patches = rows if no_embed_class else rows - prefix
    side = math.isqrt(max(patches, 0))
    if side**2 != patches:
        raise UserError(
            f"{source} has positions for {patches} patches, which make no square grid: load it into a network of its "
            "img_size, and save that with save_pretrained."
        )
    if no_embed_class and prefix and "reg_token" not in shapes:
        _log.warning(
            "%s: its %d positions are taken for those of %d×%d patches alone, as in DeiT III; if its images were not "
            "square, name its network with model=.",
            source,
            rows,
            side,
            side,
        )
    arguments |= {
        "img_size": (side * patch_size[0], side * patch_size[1]),
        "class_token": "cls_token" in shapes,
        "dist_token": "dist_token" in shapes,
        "reg_tokens": shapes.get("reg_token", (0, 0))[1],
        "no_embed_class": no_embed_class,
        "qkv_bias": "blocks.0.attn.qkv.bias" in shapes,
        "init_values": 1.0 if "blocks.0.ls1.gamma" in shapes else None,
    }
    if shapes.get("cls_token", (1, 1))[1] > 1:
        arguments["num_cls_tokens"] = shapes["cls_token"][1]
    if framework is not None:
        return "mim", arguments | framework
    return "model", arguments | {
        "name": "vit",
        "num_classes": shapes.get("head.weight", (0,))[0],
        "global_pool": "avg" if "fc_norm.weight" in shapes or "cls_token" not in shapes else "token",
        "fc_norm": "fc_norm.weight" in shapes,
    }


def _count(shapes: Mapping[str, Any], blocks: str) -> int:
    return len({match[1] for name in shapes if (match := re.match(rf"{blocks}\.(\d+)\.", name))})
