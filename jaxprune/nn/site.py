"""The places of a network where a plan can act, all plain values."""

import math
from typing import NamedTuple

from jaxprune.nn.cells import Cells
from jaxprune.nn.windows import Windows


class Site(NamedTuple):
    """One block of a host, as a plan sees it; all Python values.

    Attributes:
      layer: its number, from 0.
      path: of the block in the host, such as "blocks.3" or "stages.1.blocks.0".
      grid: tokens at this place: (rows, columns), or (frames, rows, columns).
      num_prefix_tokens: CLS, distillation and register tokens in front.
      embed_dim: width of a token.
      num_heads: attention heads; 0 = there is no attention to read.
      leaves: whether rows can leave the sequence here. Otherwise the map stays whole, and rows only skip work.
      stage: of a hierarchical network, from 0.
      windows: inside which rows attend to each other; None = all do.
      cells: inside which rows can merge and stay so for the rest of the stage, though they cannot leave otherwise;
        None = nowhere.
    """

    layer: int
    path: str
    grid: tuple[int, ...]
    num_prefix_tokens: int
    embed_dim: int
    num_heads: int
    leaves: bool = True
    stage: int = 0
    windows: Windows | None = None
    cells: Cells | None = None

    @property
    def num_patches(self) -> int:
        """Tokens of the grid."""
        return math.prod(self.grid)
