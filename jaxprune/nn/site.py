"""The sites of a network where a plan can act, as plain values."""

import math
from typing import NamedTuple

from jaxprune.nn.window_cells import Cells
from jaxprune.nn.windows import Windows


class Site(NamedTuple):
    """One block of a host, as seen by a plan; all Python values.

    Attributes:
      layer: index of the block, from 0.
      path: path of the block in the host, such as "blocks.3" or "stages.1.blocks.0".
      grid: token grid at this block: (rows, columns), or (frames, rows, columns).
      num_prefix_tokens: CLS, distillation and register tokens in front.
      embed_dim: width of a token.
      num_heads: attention heads; 0 = no attention to read.
      removable: whether rows can be removed here. Otherwise the map stays whole, and rows only skip work.
      stage: stage of a hierarchical network, from 0.
      windows: the windows of the block's attention; None = global attention.
      cells: parts of the map inside which rows can merge, and stay merged until the stage ends, although they cannot be
        removed; None = nowhere.
    """

    layer: int
    path: str
    grid: tuple[int, ...]
    num_prefix_tokens: int
    embed_dim: int
    num_heads: int
    removable: bool = True
    stage: int = 0
    windows: Windows | None = None
    cells: Cells | None = None

    @property
    def num_patches(self) -> int:
        """Number of tokens of the grid."""
        return math.prod(self.grid)
