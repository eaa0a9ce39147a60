"""The block of ViTDet's backbone: attention inside windows or global, with decomposed relative positions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.nn import Attended, Block
from jaxprune.nn.attention import Heads, key_mask_bias, self_attention
from jaxprune.nn.block_cost import BlockCost
from jaxprune.nn.tokens import coordinates
from jaxprune.nn.windows import Windows
from jaxprune.ops.resize import resize

_DIGIT = 128


class ViTDetBlock(Block):
    """A block with decomposed relative positions, whose attention is global or inside windows.

    Windows lie on the map that is padded at the bottom and right; padding takes part as keys, as published. Rows that a
    plan has removed are missing in their windows. To the scaled product of a pair are added the products of the
    unscaled query with a vector for their distance in rows, and one for that in columns: both ride as further columns
    of queries and keys, so no matrix of all pairs is made.

    Args:
      window: rows and columns of a window; 0 = global attention.
      grid: the grid of the map.
      table_grid: the grid that the relative positions of a global block were made for.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        window: int,
        grid: tuple[int, int],
        table_grid: tuple[int, int],
        dtype: Any = None,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        super().__init__(dim, num_heads, num_prefix_tokens=0, grid=grid, dtype=dtype, rngs=rngs, **options)
        self.windows = Windows(grid, (window, window)) if window else None
        self.head_dim = dim // num_heads
        rows, columns = (window, window) if window else table_grid
        table = lambda side: nnx.Param(jnp.zeros((2 * side - 1, self.head_dim), jnp.float32))
        attention: Any = self.attn
        attention.rel_pos_h, attention.rel_pos_w = table(rows), table(columns)

    def project(self, normed: Float[Array, "b n d"], position: Float[Array, "b n 2"] | None = None) -> Heads:
        """Queries, keys and values; with further columns for relative positions, or for the place in a window.

        Args:
          position: (row, column) of each token; None if all patches are present, in raster order.
        """
        heads = self.attn.project(normed)
        places = jnp.asarray(coordinates(self.grid))[None] if position is None else position
        places = jnp.broadcast_to(places, (normed.shape[0], *places.shape[1:]))
        if self.windows is None:
            return self._with_positions(heads, jnp.round(places).astype(jnp.int32), self.grid)
        # Attention cuts windows, and needs to know where the rows are.
        # In two digits: bfloat16 holds whole numbers up to 256 exactly.
        digits = jnp.concatenate(jnp.divmod(jnp.round(places.astype(jnp.float32)), _DIGIT), axis=-1)
        columns = jnp.broadcast_to(digits[:, None].astype(heads.k.dtype), (*heads.k.shape[:3], digits.shape[-1]))
        return heads._replace(k=jnp.concatenate([heads.k, columns], axis=-1))

    def attend(
        self,
        heads: Heads,
        *,
        bias: Float[Array, "#b #h #m n"] | None = None,
        policy: Float[Array, "b n"] | None = None,
        soft_policy: bool = False,
        needs: frozenset[str] = frozenset(),
        grid: tuple[int, ...] | None = None,
    ) -> tuple[Float[Array, "b m d"], Attended]:
        """See `Block.attend`.

        Args:
          grid: the grid of the map if all patches are present, in raster order.

        Raises:
          UserError: a method asks for a part of the attention that windows do not give.
        """
        if self.windows is None:
            options = {"bias": bias, "policy": policy, "soft_policy": soft_policy, "needs": needs}
            gathered, attended = super().attend(heads, **options)
            keys = attended.keys
            return gathered, attended if keys is None else attended._replace(keys=keys[..., : self.head_dim])
        if soft_policy or heads.q.shape[2] != heads.k.shape[2]:
            raise UserError(
                "Windows of ViTDet attend to all rows that are left, equally: use a method that neither learns a "
                "policy nor computes single rows of attention."
            )
        keys, digits = heads.k[..., : self.head_dim], heads.k[:, 0, :, self.head_dim :].astype(jnp.int32)
        places = digits[..., :2] * _DIGIT + digits[..., 2:]
        cells = None if grid is not None else places @ jnp.array([self.grid[1], 1])
        heads, of_keys = heads._replace(k=keys), self._of_keys(bias, policy, heads)
        inside = self._inside(heads, cells, of_keys)
        cut, of_window = self._cut(inside, of_keys is not None or cells is not None)
        gathered, attended = self_attention(cut, bias=of_window, needs=needs, num_prefix_tokens=0)
        b, h, n, e = heads.q.shape
        split = gathered.reshape(*gathered.shape[:2], h, e).swapaxes(1, 2)
        rows = self._rows(split, cells).swapaxes(1, 2).reshape(b, n, h * e)
        fields = {}
        for name in needs:
            field = getattr(attended, name)
            if name == "keys":
                field = field[..., : self.head_dim]
            per_token = field.ndim == 3
            laid_out = self._rows(field[..., None] if per_token else field, cells)
            fields[name] = laid_out[..., 0] if per_token else laid_out
        return rows, Attended(**fields)

    def _of_keys(self, bias: Any, policy: Any, heads: Heads) -> Float[Array, "b n"] | None:
        """The bias of each key, from sizes and absence; None without one."""
        bias = key_mask_bias(bias, policy)
        if bias is None:
            return None
        if bias.shape[1:3] != (1, 1):
            raise UserError("Windows of ViTDet have their own biases by pair: no others can be added.")
        return jnp.broadcast_to(bias[:, 0, 0], (heads.q.shape[0], heads.q.shape[2]))

    def _inside(self, heads: Heads, cells: Any, of_keys: Any) -> tuple[Array, Array, Array, Any]:
        """Queries, keys, values and biases of keys on the whole map; missing rows are 0, with the lowest bias."""
        if cells is None:
            return heads.q, heads.k, heads.v, of_keys
        b, h, n, e = heads.q.shape
        patches = self.grid[0] * self.grid[1]

        def laid(part: Array, cell: Array) -> Array:
            return jnp.zeros((h, patches, e), part.dtype).at[:, cell].set(part)

        of_keys = jnp.zeros((b, n)) if of_keys is None else of_keys
        lowest = jnp.full((patches,), jnp.finfo(jnp.float32).min)
        bias = jax.vmap(lambda values, cell: lowest.at[cell].set(values))(of_keys, cells)
        q, k, v = (jax.vmap(laid)(part, cells) for part in heads)
        return q, k, v, bias

    def _cut(self, parts: tuple[Array, Array, Array, Any], biased: bool) -> tuple[Heads, Array | None]:
        """The windows of a map, with columns for relative positions, and the biases of keys."""
        windows: Any = self.windows
        q, k, v, of_keys = parts
        fill: tuple[Any, ...] = (None, None, None)
        if windows.filled_up() != windows:
            zeros = jnp.zeros((1, 1, self.attn.proj.kernel.shape[0]), v.dtype)
            fill = tuple(part[0, :, 0] for part in self.attn.project(zeros))
        inside = Heads(*(windows.cut(part, of_padding) for part, of_padding in zip((q, k, v), fill, strict=True)))
        places = jnp.asarray(coordinates(windows.size).astype(np.int32))[None]
        inside = self._with_positions(
            inside, jnp.broadcast_to(places, (inside.q.shape[0], *places.shape[1:])), windows.size
        )
        if not biased:
            return inside, None
        return inside, windows.cut(of_keys[:, None, :, None]).swapaxes(2, 3)

    def _rows(self, values: Array, cells: Any) -> Array:
        """The rows of windows, in the order of the tokens."""
        windows: Any = self.windows
        maps = windows.join(values)
        return maps if cells is None else jax.vmap(lambda part, cell: part[:, cell])(maps, cells)

    def _with_positions(self, heads: Heads, places: Int[Array, "b n 2"], grid: tuple[int, ...]) -> Heads:
        """Adds the columns that make relative positions part of the scaled product."""
        q, k, v = heads
        e, width = self.head_dim, self.head_dim + sum(grid)
        attention: Any = self.attn
        products, columns = [q * (width / e) ** 0.5], [k]
        for axis, (side, table) in enumerate(zip(grid, (attention.rel_pos_h, attention.rel_pos_w), strict=True)):
            distances = _of_length(table[...], 2 * side - 1).astype(q.dtype)
            # The product of each query with every distance, of which each key's is one.
            distance_products = jnp.einsum("bhne,re->bhnr", q, distances) * width**0.5
            index = places[..., axis, None] + (side - 1) - jnp.arange(side, dtype=jnp.int32)[None, None]
            products.append(
                jnp.take_along_axis(distance_products, jnp.broadcast_to(index[:, None], (*q.shape[:3], side)), axis=3)
            )
            is_key = places[..., axis, None] == jnp.arange(side, dtype=jnp.int32)[None, None]
            columns.append(jnp.broadcast_to(is_key[:, None].astype(k.dtype), (*k.shape[:3], side)))
        return Heads(jnp.concatenate(products, axis=-1), jnp.concatenate(columns, axis=-1), v)

    def cost(self, grid: tuple[int, ...] | None = None) -> BlockCost:
        """The cost of the block; windows are computed whole, with their padding, whatever rows are left.

        Relative positions are counted with the projection, or with the windows.
        """
        cost, dim = super().cost(grid), self.attn.proj.kernel.shape[0]
        if self.windows is None:
            return cost._replace(project=cost.project + sum(self.grid) * dim)
        (down, across), (height, width) = self.windows.counts, self.windows.size
        places = down * across * height * width
        return cost._replace(pair=0, fixed=places * (height * width * cost.pair + (height + width) * dim))


def _of_length(table: Float[Array, "r e"], length: int) -> Float[Array, "s e"]:
    """Relative positions for another size of the map: interpolated linearly."""
    if len(table) == length:
        return table
    return resize(table[None, None], (1, length), "bilinear")[0, 0]
