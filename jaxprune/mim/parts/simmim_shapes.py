"""SimMIM's published files: the architecture that the shapes of their tensors tell."""

import math
import re
from collections.abc import Mapping
from typing import Any

from jaxprune.mim.parts.rebuild_thrown import aggregation_of


def architecture(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Infers the arguments of a framework; mask blocks leave no trace in shapes and are assumed to be patches."""
    width, channels, *patch_size = shapes["patch_embed.proj.weight"]
    arguments = _of_swin(shapes) if "layers.0.blocks.0.norm1.weight" in shapes else _of_vit(shapes)
    cells = arguments.pop("cells")
    arguments |= {"embed_dim": width, "in_chans": channels, "patch_size": tuple(patch_size)}
    arguments |= {"img_size": tuple(cells * side for side in patch_size), "mask_patch": tuple(patch_size)}
    return {**arguments, **aggregation_of(shapes)}


def _of_vit(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Infers the arguments of a ViT, and the number of `cells` along a side of its square grid."""
    tables = {
        "shared": shapes.get("rel_pos_bias.relative_position_bias_table"),
        "block": shapes.get("blocks.0.attn.relative_position_bias_table"),
    }
    rel_pos = next((name for name, shape in tables.items() if shape is not None), "none")
    rows, heads = tables.get(rel_pos) or (0, 1)  # without a table, the number of heads is unknown
    side = (math.isqrt(rows - 3) + 1) // 2 if rows else math.isqrt(shapes.get("pos_embed", (1, 2, 0))[1] - 1)
    return {
        "encoder": "vit",
        "depth": _count(shapes, r"blocks\.(\d+)\."),
        "num_heads": heads,
        "rel_pos": rel_pos,
        "pos_embed": "learn" if "pos_embed" in shapes else "none",
        "mlp_ratio": _mlp_ratio(shapes, "blocks.0."),
        "qkv_bias": "qv" if "blocks.0.attn.q_bias" in shapes else "blocks.0.attn.qkv.bias" in shapes,
        "init_values": 0.1 if "blocks.0.ls1.gamma" in shapes else None,
        "cells": side,
    }


def _of_swin(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Infers the arguments of a Swin; of unknown image size: the last map, of `cells`, is assumed to be one window."""
    stages = _count(shapes, r"layers\.(\d+)\.")
    tables = [shapes[f"layers.{stage}.blocks.0.attn.relative_position_bias_table"] for stage in range(stages)]
    window = (math.isqrt(tables[0][0]) + 1) // 2
    return {
        "encoder": "swin",
        "depths": tuple(_count(shapes, rf"layers\.{stage}\.blocks\.(\d+)\.") for stage in range(stages)),
        "num_heads": tuple(heads for _, heads in tables),
        "window_size": window,
        "mlp_ratio": _mlp_ratio(shapes, "layers.0.blocks.0."),
        "cells": window << (stages - 1),
    }


def _mlp_ratio(shapes: Mapping[str, tuple[int, ...]], block: str) -> float:
    hidden, width = shapes[f"{block}mlp.fc1.weight"]
    # Adding a little prevents the product with a width, of any stage, from being truncated to one less.
    return (hidden + 1e-3) / width


def _count(shapes: Mapping[str, tuple[int, ...]], pattern: str) -> int:
    return len({match[1] for name in shapes if (match := re.match(pattern, name))})
