"""ViTDet's backbone (Li et al., 2022), as in detectron2: a plain ViT without a CLS token, for large images.

Most blocks attend inside windows, a few to the whole map; attention has decomposed relative positions, and absolute
ones are interpolated in each pass from the grid of pre-training.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.nn import Attended, Block, BlockRunner, Host, Linear, Overhead, PatchEmbed, Site, Tokens
from jaxprune.nn.attention import Heads, key_mask_bias, self_attention
from jaxprune.nn.block_cost import BlockCost, linear_flops
from jaxprune.nn.images import require_float
from jaxprune.nn.linear import normal_02
from jaxprune.nn.patch_embed import grid_of, pair
from jaxprune.nn.tokens import all_present, coordinates
from jaxprune.nn.windows import Windows
from jaxprune.ops.posembed import Resampling, resample
from jaxprune.ops.resize import resize
from jaxprune.preprocessing import Preprocessing

_SIZES = {
    "base": {"embed_dim": 768, "depth": 12, "num_heads": 12, "drop_path_rate": 0.1},
    "large": {"embed_dim": 1024, "depth": 24, "num_heads": 16, "drop_path_rate": 0.4},
    "huge": {"embed_dim": 1280, "depth": 32, "num_heads": 16, "drop_path_rate": 0.5},
}
TINY = {
    "img_size": 32,
    "patch_size": 4,
    "pretrain_img_size": 16,
    "embed_dim": 16,
    "depth": 4,
    "num_heads": 2,
    "window_size": 3,
}
# Every so many blocks, the last of them attends to the whole map.
_STRETCHES = 4


def variants() -> dict[str, dict[str, Any]]:
    """Returns {name: constructor arguments}."""
    named = {f"vitdet_{size}_patch16_1024": {"img_size": 1024, **sizes} for size, sizes in _SIZES.items()}
    return {"vitdet": {}, **named}


def preprocessing(name: str, arguments: dict[str, Any]) -> Preprocessing:
    """Returns how images are prepared: whole, with ImageNet's mean and standard deviation."""
    return Preprocessing(pair(arguments.get("img_size", 1024)), crop_pct=1.0, interpolation="bilinear")


def default_global_blocks(depth: int) -> tuple[int, ...]:
    """The blocks with global attention: the last of each quarter of the network.

    >>> default_global_blocks(12), default_global_blocks(24)
    ((2, 5, 8, 11), (5, 11, 17, 23))
    """
    return tuple(sorted({max((part + 1) * depth // _STRETCHES - 1, 0) for part in range(_STRETCHES)}))


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
        self.attn.rel_pos_h, self.attn.rel_pos_w = table(rows), table(columns)

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
        columns = jnp.broadcast_to(places[:, None].astype(heads.k.dtype), (*heads.k.shape[:3], 2))
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
        keys, places = heads.k[..., : self.head_dim], heads.k[:, 0, :, self.head_dim :]
        cells = None if grid is not None else jnp.round(places).astype(jnp.int32) @ jnp.array([self.grid[1], 1])
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
            return (*heads, of_keys)
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
        products, columns = [q * (width / e) ** 0.5], [k]
        for axis, (side, table) in enumerate(zip(grid, (self.attn.rel_pos_h, self.attn.rel_pos_w), strict=True)):
            distances = _of_length(table[...], 2 * side - 1).astype(q.dtype)
            # The product of each query with every distance, of which each key's is one.
            every = jnp.einsum("bhne,re->bhnr", q, distances) * width**0.5
            index = places[..., axis, None] + (side - 1) - jnp.arange(side, dtype=jnp.int32)[None, None]
            products.append(jnp.take_along_axis(every, jnp.broadcast_to(index[:, None], (*q.shape[:3], side)), axis=3))
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


class ViTDet(Host):
    """ViTDet's ViT; its last map, without a final norm, is what a detector reads.

    Args:
      img_size: height and width in pixels; an int means a square.
      patch_size: likewise.
      pretrain_img_size: the size that the table of absolute positions is for; it has a row for a CLS token in front,
        which is not used here.
      table_img_size: the size that the relative positions of global blocks are for; by default `img_size`.
      num_classes: a linear classifier of the mean; 0 leaves it out.
      window_size: rows and columns of a window.
      global_blocks: the blocks with global attention; by default the last of each quarter of the network.
      drop_path_rate: stochastic depth rate of the last block; rates rise linearly from 0 over the depth.
      dtype: compute dtype; parameters stay float32.
      remat: recompute each block in the backward pass instead of keeping its activations.
    """

    num_prefix_tokens = 0
    no_decay = ("pos_embed",)
    position_rule = Resampling("bicubic", antialias=False)

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 1024,
        patch_size: int | tuple[int, int] = 16,
        pretrain_img_size: int | tuple[int, int] = 224,
        table_img_size: int | tuple[int, int] | None = None,
        in_chans: int = 3,
        num_classes: int = 0,
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        window_size: int = 14,
        global_blocks: Sequence[int] | None = None,
        norm_eps: float = 1e-6,
        drop_path_rate: float = 0.0,
        kernel_init=normal_02,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        super().__init__()
        self.patch_embed = PatchEmbed(img_size, patch_size, in_chans, embed_dim, dtype=dtype, rngs=rngs)
        self.grid = self.patch_embed.grid
        self.position_grid = grid_of(pretrain_img_size, patch_size)
        table_grid = self.grid if table_img_size is None else grid_of(table_img_size, patch_size)
        self.embed_dim, self.num_heads, self.depth = embed_dim, num_heads, depth
        self.dtype, self.remat, self.num_classes = dtype, remat, num_classes
        everywhere = default_global_blocks(depth) if global_blocks is None else tuple(global_blocks)
        if outside := [block for block in everywhere if not 0 <= block < depth]:
            raise UserError(f"global_blocks names block {outside[0]} of {depth}: use 0 to {depth - 1}.")
        rows = 1 + self.position_grid[0] * self.position_grid[1]
        self.pos_embed = nnx.Param(normal_02(rngs.params(), (1, rows, embed_dim)))
        self.blocks = nnx.List(
            [
                ViTDetBlock(
                    embed_dim,
                    num_heads,
                    window=0 if layer in everywhere else window_size,
                    grid=self.grid,
                    table_grid=table_grid,
                    mlp_ratio=mlp_ratio,
                    norm_eps=norm_eps,
                    drop_path=rate,
                    kernel_init=kernel_init,
                    dtype=dtype,
                    rngs=rngs,
                )
                for layer, rate in enumerate(np.linspace(0, drop_path_rate, depth).tolist())
            ]
        )
        self.head = nnx.data(Linear(embed_dim, num_classes, rngs=rngs) if num_classes else None)

    def embed(
        self, images: Float[Array, "b h w c"], ids_keep: Int[Array, "b k"] | None = None
    ) -> Float[Array, "b k d"]:
        """Embeds patches (all, or `ids_keep` in that order) and adds their positions."""
        require_float(images)
        x = self.patch_embed(images.astype(self.dtype or images.dtype), ids_keep)
        positions = resample(self.pos_embed[:, 1:], self.position_grid, self.grid, 0).astype(x.dtype)
        return x + (positions if ids_keep is None else positions[0][ids_keep])

    def run_blocks(
        self,
        images: Float[Array, "b h w c"],
        *,
        taps: Mapping[int, frozenset[str]] | None = None,
        stop: int | None = None,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> BlockRunner:
        """Embeds images, without the patches that a plan's scorer drops, and runs the first `stop` blocks.

        Raises:
          UserError: rows have merged before a block with windows, where each row needs a place of its own.
        """
        self._check_places()
        x, ids_keep, selection = self.embed_kept(images, key)
        position = jnp.asarray(coordinates(self.grid))
        tokens = all_present(x, 0, position[None] if ids_keep is None else position[ids_keep])
        runner = BlockRunner(
            tokens,
            0,
            taps=taps,
            selection=selection,
            restore=self.restore_of_input,
            train=train,
            key=key,
            all_patches=ids_keep is None,
            remat=self.remat,
        )
        for block in self.blocks[:stop]:
            runner.run(block, self.grid)
        return runner

    def _check_places(self) -> None:
        merging = None
        for layer, block in enumerate(self.blocks):
            reducer = block.reducer
            changes = (
                reducer is not None and reducer.drops is not True and reducer.num_tokens() < reducer.step.tokens_in
            )
            merging = layer if changes and merging is None else merging
            early = changes and reducer.where in ("before", "ahead", "anew", "attention")
            if block.windows is not None and merging is not None and (merging < layer or early):
                raise UserError(
                    f"Rows that merge at block {merging} have no place of their own in the windows of block {layer}: "
                    "use a method that drops rows, or merge behind the last block with windows."
                )

    def sites(self, img_size: int | Sequence[int] | None = None) -> tuple[Site, ...]:
        """The blocks; rows can be removed in all of them."""
        grid = self.grid if img_size is None else grid_of(img_size, self.patch_embed.patch_size)
        return tuple(
            Site(layer, f"blocks.{layer}", grid, 0, self.embed_dim, self.num_heads) for layer in range(self.depth)
        )

    def overhead(self, img_size: int | Sequence[int] | None = None) -> Overhead:
        """The cost of embedding one patch and of the classifier."""
        head = 0 if self.head is None else linear_flops(self.head, 1)
        return Overhead(linear_flops(self.patch_embed.proj, 1), head)

    def forward_head(self, tokens: Tokens) -> tuple[Float[Array, "b k"], tuple[Array, ...]]:
        """Maps the mean of the tokens, weighted by the number of patches each represents, to logits in float32."""
        counts = jnp.where(tokens.policy > 0, tokens.size, 0)[:, :, None]
        mean = (tokens.x.astype(jnp.float32) * counts).sum(1) / counts.sum(1)
        return (mean if self.head is None else self.head(mean)), ()


NETWORK = ViTDet
