"""Published files of a Swin that saw visible cells only: the architecture that the shapes of their tensors tell."""

import math
import re
from collections.abc import Mapping
from typing import Any

_BLOCK = re.compile(r"layers\.(\d+)\.blocks\.(\d+)\.norm1\.weight")
_TABLE = "relative_position_bias_table"


def architecture(shapes: Mapping[str, tuple[int, ...]], num_cells: int) -> dict[str, Any] | None:
    """Infers the arguments of a Swin from its tensors; None if they are not a Swin's.

    Args:
      shapes: {published name: shape}.
      num_cells: number of tokens of the last map, which is square.
    """
    patches, hidden = shapes.get("patch_embed.proj.weight", ()), shapes.get("layers.0.blocks.0.mlp.fc1.weight", ())
    blocks = sorted({(int(m[1]), int(m[2])) for name in shapes if (m := _BLOCK.match(name))})
    tables = [shapes.get(f"layers.{stage}.blocks.0.attn.{_TABLE}", ()) for stage in range(len(blocks))]
    tables = [table for table in tables if len(table) == 2]
    if not tables or (len(patches), len(hidden)) != (4, 2):
        return None
    width, in_chans, *patch_size = patches
    cells = math.isqrt(num_cells) << (len(tables) - 1)
    return {
        "img_size": (cells * patch_size[0], cells * patch_size[1]),
        "patch_size": tuple(patch_size),
        "in_chans": in_chans,
        "embed_dim": width,
        "depths": tuple(sum(of == stage for of, _ in blocks) for stage in range(len(tables))),
        "num_heads": tuple(heads for _, heads in tables),
        "window_size": (math.isqrt(tables[0][0]) + 1) // 2,
        # Adding a little prevents the product with a width from being truncated to one less.
        "mlp_ratio": math.nextafter(hidden[0] / width, math.inf),
    }
