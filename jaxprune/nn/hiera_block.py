"""Hiera's block: attention inside mask units or between all rows, and queries that pool (Ryali et al., 2023)."""

import math
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.nn.attention import attend, merge_heads
from jaxprune.nn.block_cost import BlockCost, linear_flops
from jaxprune.nn.block_style import LayerScale
from jaxprune.nn.drop_path import DropPath
from jaxprune.nn.linear import Linear
from jaxprune.nn.mlp import Mlp
from jaxprune.nn.norm import LayerNorm
from jaxprune.nn.optional_key import split_key
from jaxprune.nn.reducible import Reducible
from jaxprune.nn.tokens import NOTHING, Attended, Tokens, all_present, on_map
from jaxprune.nn.windows import Windows

POOLED = 2  # rows per side that are pooled into one


def _pooled(x: Float[Array, "b h n e"], grid: tuple[int, int], how: Any = jnp.max) -> Float[Array, "b h m e"]:
    """Pools each 2×2 neighbourhood of a map to one row, by maximum or another `how`."""
    b, h, _, e = x.shape
    cells = x.reshape(b, h, grid[0] // 2, 2, grid[1] // 2, 2, e)
    return how(cells, axis=(3, 5)).reshape(b, h, -1, e)


class _Projections(nnx.Module):
    def __init__(self, dim: int, out: int, num_heads: int, *, dtype: Any, rngs: nnx.Rngs):
        if out % num_heads:
            raise UserError(f"A width of {out} is not divisible by num_heads={num_heads}: change embed_dim or it.")
        self.qkv = Linear(dim, 3 * out, dtype=dtype, rngs=rngs)
        self.proj = Linear(out, out, dtype=dtype, rngs=rngs)
        self.num_heads = num_heads


class HieraBlock(Reducible):
    """Attention with optional query pooling, and MLP; rows dropped by a plan stay on the map and skip the MLP.

    Rows are a map in raster order. Where mask units have been dropped, the remaining rows come unit by unit: a map that
    is one column of units, each a window like any other.

    Args:
      grid: of the incoming rows.
      side: side of a mask unit, in incoming rows.
      pools: whether each 2×2 rows become one, with `out` instead of `dim` channels.
      inside: whether attention stays inside mask units instead of covering all rows.
      expand: whether the residual is projected where the width changes; otherwise maximum and mean are concatenated.
    """

    def __init__(
        self,
        dim: int,
        out: int,
        num_heads: int,
        *,
        grid: tuple[int, int],
        side: int,
        pools: bool,
        inside: bool,
        mlp_ratio: float = 4.0,
        init_values: float | None = None,
        expand: bool = True,
        drop_path: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        super().__init__(num_prefix_tokens=0, removable=False)
        scale = lambda: nnx.data(None if init_values is None else LayerScale(out, init_values))
        self.arriving, self.side, self.pools, self.inside = grid, side, pools, inside
        self.pooled = POOLED**2 if pools else 1
        self.norm1 = LayerNorm(dim)
        self.proj = nnx.data(Linear(dim, out, dtype=dtype, rngs=rngs) if dim != out and expand else None)
        self.attn = _Projections(dim, out, num_heads, dtype=dtype, rngs=rngs)
        self.ls1, self.norm2 = scale(), LayerNorm(out)
        self.mlp, self.ls2 = Mlp(out, int(out * mlp_ratio), dtype=dtype, rngs=rngs), scale()
        self.drop_path = DropPath(drop_path)

    def __call__(
        self,
        tokens: Tokens,
        attended: Attended = NOTHING,
        *,
        grid: tuple[int, ...] | None = None,
        taps: frozenset[str] = frozenset(),
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Tokens, Attended, Any]:
        """Runs the block, see `nn.Block`; attention inside units is not reported."""
        keys = split_key(key, 3)
        drop_keys = keys[:2] if train else (None, None)
        x, normed = tokens.x, self.norm1(tokens.x)
        grid_in = self._grid(x.shape[1])
        mixed = self._branch(self.attn.proj(self._gathered(normed, grid_in)), self.ls1, drop_keys[0])
        x = self._residual(x, normed, grid_in) + mixed
        if self.pools:
            grid_out = (grid_in[0] // POOLED, grid_in[1] // POOLED)
            tokens = on_map(x, grid_out) if grid_in == self.arriving else self._pooled_account(tokens, x, grid_in)
        tokens = tokens._replace(x=x)
        work = lambda x: self._branch(self.mlp(self.norm2(x)), self.ls2, None)
        branch, report = self.skip(tokens, attended, work, train=train, key=keys[2])
        return tokens._replace(x=x + self.drop_path(branch, drop_keys[1])), NOTHING, report

    def _grid(self, rows: int) -> tuple[int, int]:
        """The grid of a number of rows: the whole map, or one column of mask units."""
        return self.arriving if rows == math.prod(self.arriving) else (rows // self.side, self.side)

    def _pooled_account(self, tokens: Tokens, x: Float[Array, "b m e"], grid: tuple[int, int]) -> Tokens:
        """Tokens of the remaining mask units after pooling, with the row of each map position."""
        position = _pooled(tokens.position[:, None], grid, jnp.min)[:, 0] // POOLED
        rows, columns = (side // POOLED for side in self.arriving)
        corners = tokens.assign.reshape(-1, *self.arriving)[:, ::POOLED, ::POOLED].reshape(-1, rows * columns)
        unit, inside = corners // self.side**2, corners % self.side**2
        after = self.side // POOLED
        row, column = inside // self.side // POOLED, inside % self.side // POOLED
        assign = jnp.where(corners < 0, -1, unit * after**2 + row * after + column)
        return all_present(x, 0, position)._replace(assign=assign)

    def _residual(
        self, x: Float[Array, "b n d"], normed: Float[Array, "b n d"], grid: tuple[int, int]
    ) -> Float[Array, "b m e"]:
        on = lambda x, how=jnp.max: _pooled(x[:, None], grid, how)[:, 0] if self.pools else x
        if self.proj is not None:
            return on(self.proj(normed))
        if self.norm1.scale.shape == self.norm2.scale.shape:
            return on(x)
        return jnp.concatenate([on(x), on(x, jnp.mean)], axis=-1)

    def _gathered(self, normed: Float[Array, "b n d"], grid: tuple[int, int]) -> Float[Array, "b m e"]:
        b, n, _ = normed.shape
        q, k, v = self.attn.qkv(normed).reshape(b, n, 3, self.attn.num_heads, -1).transpose(2, 0, 3, 1, 4)
        leaving = tuple(side // POOLED for side in grid) if self.pools else grid
        if not self.inside:
            q = _pooled(q, grid) if self.pools else q
            return merge_heads(attend(q, k, v))
        units = Windows(grid, (self.side, self.side))
        q, k, v = (units.cut(part) for part in (q, k, v))
        side = self.side
        if self.pools:
            q, side = _pooled(q, (side, side)), side // POOLED
        return merge_heads(Windows((leaving[0], leaving[1]), (side, side)).join(attend(q, k, v)))

    def _branch(self, out: Array, scale: LayerScale | None, key: PRNGKeyArray | None) -> Array:
        return self.drop_path(out if scale is None else scale(out), key)

    def cost(self, grid: tuple[int, ...] | None = None) -> BlockCost:
        """The cost of the block for its outgoing rows, from shapes only.

        Args:
          grid: of the outgoing rows; by default the whole map.
        """
        width = self.attn.proj.kernel.shape[0]
        before = linear_flops(self.attn.qkv, 1) + (0 if self.proj is None else linear_flops(self.proj, 1))
        feed = linear_flops(self.mlp.fc1, 1) + linear_flops(self.mlp.fc2, 1)
        rows = math.prod(self.arriving) if grid is None else math.prod(grid) * self.pooled
        keys = self.side**2 if self.inside else rows
        return BlockCost(
            project=before * self.pooled, pair=2 * width, mix=linear_flops(self.attn.proj, 1), feed=feed, keys=keys
        )
