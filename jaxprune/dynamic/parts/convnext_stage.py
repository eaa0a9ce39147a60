"""A stage of a ConvNeXt on maps, which can leave the point-wise layers of some places out (PaPr)."""

from collections.abc import Callable, Sequence
from typing import Any

from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.models.convnext import ConvNeXtBlock, Cut
from jaxprune.nn.norm import LayerNorm
from jaxprune.nn.optional_key import fold_in
from jaxprune.nn.tokens import on_map
from jaxprune.ops.patches import gather_tokens, scatter_tokens

_EPS = 1e-6
Kept = Callable[[tuple[int, int]], Int[Array, "b k"]]


class ConvNeXtStage(nnx.Module):
    """A downsampling layer, except in the first stage, and blocks.

    Args:
      inputs: channels of the map that enters; None in the first stage, which does not downsample.
      dim: channels.
      drop_paths: stochastic depth rate of each block.
    """

    def __init__(self, inputs: int | None, dim: int, drop_paths: Sequence[float], *, dtype: Any = None, rngs: nnx.Rngs):
        common = {"dtype": dtype, "rngs": rngs}
        self.downsample = nnx.data(
            None if inputs is None else nnx.List([LayerNorm(inputs, eps=_EPS), Cut(inputs, dim, 2, **common)])
        )
        self.blocks = nnx.List(ConvNeXtBlock(dim, drop_path=rate, norm_eps=_EPS, **common) for rate in drop_paths)

    def __call__(
        self,
        maps: Float[Array, "b h w i"],
        *,
        kept: Kept | None = None,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "b H W o"]:
        """Runs the stage.

        Args:
          kept: from the grid of a map to the ids of the places that are computed; None computes all.
          key: for stochastic depth in training.
        """
        if self.downsample is not None:
            norm, cut = self.downsample
            rows, columns = (side // 2 for side in maps.shape[1:3])
            maps = cut(norm(maps)).reshape(maps.shape[0], rows, columns, -1)
        grid = (maps.shape[1], maps.shape[2])
        ids = None if kept is None else kept(grid)
        for index, block in enumerate(self.blocks):
            block_key = fold_in(key, index)
            if ids is None:
                tokens, _, _ = block(
                    on_map(maps.reshape(maps.shape[0], -1, maps.shape[-1]), grid), grid=grid, train=train, key=block_key
                )
                maps = tokens.x.reshape(maps.shape)
            else:
                maps = _at(block, maps, ids, train=train, key=block_key)
        return maps


def _at(
    block: ConvNeXtBlock, maps: Float[Array, "b h w d"], ids: Int[Array, "b k"], *, train: bool, key: Any
) -> Float[Array, "b h w d"]:
    """Runs a block whose point-wise layers see some places; the others are 0 after it, as in PaPr's code."""
    b, height, width, dim = maps.shape
    flat = lambda maps: maps.reshape(b, height * width, dim)
    branch = block.pointwise(gather_tokens(flat(block.conv_dw(maps)), ids))
    branch = block.drop_path(branch, key if train else None)
    rows = gather_tokens(flat(maps), ids) + branch
    return scatter_tokens(rows, ids, height * width).reshape(maps.shape)
