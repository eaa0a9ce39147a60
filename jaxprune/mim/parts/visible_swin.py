"""Swin on the visible cells of an image: window attention without masked tokens (Huang et al., 2022).

A cell is the area of one token of the last stage, 32×32 pixels, so all tokens of a visible cell are present in every
stage and merge with each other. Tokens are stored cell by cell. Each attends to those of its window, and windows do not
wrap around the map. The following forms of attention give the same result:

    "all"     every token with every other one, and a mask: the cheapest for few tokens
    "map"     queries, keys and values back in their places of the map, then its windows with absent keys hidden
    "packed"  the tokens of several windows together, a mask between windows: for one mask for all images
    "groups"  likewise, in fewer and smaller groups: for one that is known on the host too
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxprune.errors import UserError
from jaxprune.mim.parts.masker import Masks, SharedMasks
from jaxprune.mim.parts.window_grouping import Groups, group_tokens, locate, most_groups, pack_tokens, window_ids
from jaxprune.models.swin import SwinTransformer
from jaxprune.nn.attention import Heads, attend, key_mask_bias, merge_heads
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.patch_embed import pair
from jaxprune.nn.swin_block import SwinBlock
from jaxprune.nn.windows import Windows
from jaxprune.ops.tracing import numpy_of

# Arguments without use in an encoder that has no head and its own initialisation; pre-training has no stochastic depth.
WITHOUT_HEAD = frozenset({"num_classes", "head_init_scale", "kernel_init", "patch_kernel_init", "drop_path_rate"})
_HIDDEN = float(np.finfo(np.float32).min)


def cell_of(img_size: int | tuple[int, int], patch_size: int | tuple[int, int], num_stages: int) -> tuple[int, int]:
    """Height and width in pixels of a cell, which is a token of the last stage.

    >>> cell_of(224, 4, num_stages=4)
    (32, 32)

    Raises:
      UserError: the image is not a whole number of cells.
    """
    merged = 2 ** (num_stages - 1)
    height, width = (side * merged for side in pair(patch_size))
    if any(side % of_cell for side, of_cell in zip(pair(img_size), (height, width), strict=True)):
        raise UserError(
            f"img_size {img_size} is not a whole number of cells of {height}x{width} pixels; each becomes one token of "
            f"the last of {num_stages} stages: choose a multiple."
        )
    return height, width


class VisibleCells(NamedTuple):
    """The arrangement of a stage's tokens in cells; plain values.

    Attributes:
      grid: (rows, columns) of cells.
      side: (rows, columns) of tokens in a cell.
    """

    grid: tuple[int, int]
    side: int

    @property
    def tokens(self) -> int:
        """Number of tokens of a cell."""
        return self.side**2

    def coords(self, ids: Any) -> Any:
        """(row, column) on the map of every token of the cells `ids` (r, k), cell by cell: (r, k·tokens, 2).

        Args:
          ids: indices of cells in raster order, as a NumPy or JAX array.
        """
        inside = np.stack(np.divmod(np.arange(self.tokens, dtype=np.int32), self.side), axis=1)
        corners = (ids[..., None] // np.int32(self.grid[1]), ids[..., None] % np.int32(self.grid[1]))
        xp = numpy_of(ids)
        places = [corner * self.side + inside[None, None, :, axis] for axis, corner in enumerate(corners)]
        return xp.stack(places, axis=-1).reshape(ids.shape[0], -1, 2)

    def spread(self, x: Float[Array, "b h n e"], ids: Int[Array, "r k"]) -> Float[Array, "b h m e"]:
        """Scatters the tokens of the cells `ids` to the whole map in raster order; zeros elsewhere."""
        b, h, _, e = x.shape
        k, cells = ids.shape[1], math.prod(self.grid)
        rows = jax.vmap(lambda ids: jnp.full((cells,), k, jnp.int32).at[ids].set(jnp.arange(k, dtype=jnp.int32)))(ids)
        flat = jnp.pad(x.reshape(b, h, k, -1), ((0, 0), (0, 0), (0, 1), (0, 0)))
        maps = _take(flat, rows).reshape(b, h, *self.grid, self.side, self.side, e)
        return maps.transpose(0, 1, 2, 4, 3, 5, 6).reshape(b, h, -1, e)

    def collect(self, maps: Float[Array, "b h m e"], ids: Int[Array, "r k"]) -> Float[Array, "b h n e"]:
        """The inverse of `spread`: the tokens of the cells `ids` from a map."""
        b, h, _, e = maps.shape
        (rows, columns), side = self.grid, self.side
        cells = maps.reshape(b, h, rows, side, columns, side, e).transpose(0, 1, 2, 4, 3, 5, 6)
        return _take(cells.reshape(b, h, rows * columns, -1), ids).reshape(b, h, -1, e)


def _take(x: Float[Array, "b h n e"], ids: Int[Array, "r k"]) -> Float[Array, "b h k e"]:
    """Takes rows `ids` of each image; one list for all images, or one for each."""
    if ids.shape[0] == 1:
        return x[:, :, ids[0]]
    return jax.vmap(lambda x, ids: x[:, ids])(x, ids)


def traced_pairs(windows: Windows, tokens: int, *, shared: bool = True) -> dict[str, int]:
    """The number of token pairs of each form of attention that works with a traced mask.

    >>> traced_pairs(Windows.of((56, 56), (7, 7), shifted=False), tokens=768)
    {'all': 589824, 'map': 153664, 'packed': 74431}

    Args:
      tokens: number of tokens of the visible cells.
      shared: whether all images share one mask.
    """
    size = math.prod(windows.size)
    pairs = {"all": tokens**2, "map": math.prod(windows.counts) * size**2}
    if shared:
        pairs["packed"] = most_groups(tokens, math.prod(_across(windows)), size) * size**2
    return pairs


def cheapest(windows: Windows, tokens: int, *, shared: bool = True, on_host: bool = False) -> str:
    """The cheapest form of attention.

    Args:
      tokens, shared: see `traced_pairs`.
      on_host: whether the mask is known on the host.
    """
    if shared and on_host:
        # As published, tokens that fill at most two windows are not grouped.
        return "groups" if tokens > 2 * math.prod(windows.size) else "all"
    pairs = traced_pairs(windows, tokens, shared=shared)
    return min(pairs, key=lambda form: pairs[form])


def _across(windows: Windows) -> tuple[int, ...]:
    """(rows, columns) of windows without wrapping around."""
    sides = zip(windows.grid, windows.size, windows.shift, strict=True)
    return tuple((grid - 1 + (size - shift) % size) // size + 1 for grid, size, shift in sides)


def attend_visible(
    block: SwinBlock, heads: Heads, cells: VisibleCells, ids: Int[Array | np.ndarray, "r k"], form: str
) -> Float[Array, "b n d"]:
    """Window attention among the tokens of the visible cells, with heads concatenated.

    Args:
      ids: visible cells, one list for all images or, for "all" and "map", one for each; a NumPy array for "groups".
      form: see the module's docstring.
    """
    coords, windows = cells.coords(ids), block.windows
    if form == "all":
        return merge_heads(attend(*heads, _biases(block, coords)))
    if form == "map":
        return merge_heads(_on_map(block, heads, cells, jnp.asarray(ids)))
    if form == "groups":
        groups = group_tokens(window_ids(coords[0], windows.size, windows.shift), math.prod(windows.size))
    else:
        coords, across = jnp.asarray(coords), _across(windows)
        row, column = locate(coords[0], windows.size, windows.shift)[0].T
        groups = pack_tokens(row * across[1] + column, math.prod(across), math.prod(windows.size))
    return merge_heads(_in_groups(block, heads, groups, coords[0]))


def _biases(
    block: SwinBlock, coords: Any, pair_mask: Bool[Array | np.ndarray, "r m m"] | None = None
) -> Float[Array, "r h m m"]:
    """Position biases between tokens by their offsets, with a mask between windows.

    Args:
      coords: (row, column) of the tokens, (r, m, 2).
      pair_mask: the pairs that attend to each other; by default those of one window.
    """
    windows = block.windows
    window, place = locate(coords, windows.size, windows.shift)
    if pair_mask is None:
        pair_mask = (window[:, :, None] == window[:, None, :]).all(-1)
    biases = jnp.moveaxis(block.bias_table()[windows.offsets_between(place)], -1, 1)
    return jnp.where(jnp.asarray(pair_mask)[:, None], biases, _HIDDEN)


def _on_map(block: SwinBlock, heads: Heads, cells: VisibleCells, ids: Int[Array, "r k"]) -> Float[Array, "b h n e"]:
    b, (rows, columns) = heads.q.shape[0], block.windows.grid
    # Padded to whole windows before rolling, so that wrapped tokens stay separate from those at the border.
    windows = block.windows.filled_up()
    below, right = windows.grid[0] - rows, windows.grid[1] - columns

    def cut(x: Array) -> Array:
        maps = cells.spread(x, ids).reshape(*x.shape[:2], rows, columns, -1)
        filled = jnp.pad(maps, ((0, 0), (0, 0), (0, below), (0, right), (0, 0)))
        return windows.cut(filled.reshape(*x.shape[:2], -1, x.shape[-1]))

    present = cut(jnp.ones((ids.shape[0], 1, ids.shape[1] * cells.tokens, 1)))[:, 0, :, 0]
    bias = jnp.moveaxis(block.bias_table()[windows.offsets()], -1, 0)[None]
    if (shift_mask := windows.shift_mask()) is not None:
        bias = bias + jnp.tile(jnp.asarray(shift_mask)[:, None], (ids.shape[0], 1, 1, 1))
    hidden: Any = key_mask_bias(bias, present)
    q, k, v = map(cut, heads)
    out = windows.join(attend(q, k, v, jnp.tile(hidden, (b // ids.shape[0], 1, 1, 1))))
    maps = out.reshape(*out.shape[:2], *windows.grid, -1)[:, :, :rows, :columns]
    return cells.collect(maps.reshape(*out.shape[:2], rows * columns, -1), ids)


def _in_groups(block: SwinBlock, heads: Heads, groups: Groups, coords: Any) -> Float[Array, "b h n e"]:
    b, h, _, e = heads.q.shape
    number, size = groups.rows.shape
    # An empty slot holds the last token, which is masked.
    cut = lambda x: x[:, :, groups.rows].swapaxes(1, 2).reshape(b * number, h, size, e)
    bias = _biases(block, coords[groups.rows], groups.pair_mask)
    q, k, v = map(cut, heads)
    out = attend(q, k, v, jnp.tile(bias, (b, 1, 1, 1)))
    return out.reshape(b, number, h, size, e).swapaxes(1, 2).reshape(b, h, number * size, e)[:, :, groups.slots]


def ids_in_order(masks: Masks) -> Int[Array | np.ndarray, "r k"]:
    """The visible cells in grid order: of all images if they share them, as NumPy where these are known on the host."""
    ids = masks.shared_ids if isinstance(masks, SharedMasks) else masks.ids_keep
    return numpy_of(ids).sort(ids, axis=1)


def visible_features(
    swin: SwinTransformer, images: Float[Array, "b H W c"], ids: Int[Array | np.ndarray, "r k"]
) -> Float[Array, "b k d"]:
    """The last stage's output of a Swin for the visible cells of images, after the final norm.

    Args:
      ids: see `visible_stages`.
    """
    return swin.final_norm(visible_stages(swin, images, ids)[-1])


def visible_stages(
    swin: SwinTransformer, images: Float[Array, "b H W c"], ids: Int[Array | np.ndarray, "r k"]
) -> tuple[Float[Array, "b _ _"], ...]:
    """What every stage of a Swin gives to the next for the visible cells of images, cell by cell.

    These are a stage's tokens after they were merged; those of the last stage are not merged.

    Args:
      ids: indices of the visible cells on the last stage's grid, one list for all images or one for each. A single
        NumPy list is a mask known on the host.
    """
    x: Any = images.astype(swin.dtype or images.dtype)
    cells, kind = stages(swin), {"shared": len(ids) == 1, "on_host": isinstance(ids, np.ndarray)}
    coords = jnp.asarray(cells[0].coords(ids))
    places = coords[..., 0] * swin.grids[0][1] + coords[..., 1]
    x = swin.patch_embed(x, jnp.broadcast_to(places, (x.shape[0], places.shape[1])))
    merged = []
    for stage, layer in enumerate(swin.layers):
        if stage:
            side = cells[stage - 1].side
            grouped = layer.downsample(x.reshape(-1, side**2, x.shape[-1]), (side, side))
            x = grouped.reshape(x.shape[0], -1, grouped.shape[-1])
            merged.append(x)
        for block in layer.blocks:
            form = cheapest(block.windows, x.shape[1], **kind)
            x = _run(block, x, cells[stage], ids, form, remat=swin.remat)
    return (*merged, x)


def visible_flops(swin: SwinTransformer, visible: int, *, shared: bool = True, as_published: bool = True) -> int:
    """Multiply-accumulates of `visible_features` for one image, without the patch embedding.

    As published, attention is over all tokens of a stage if they fill at most two windows, else in groups of the size
    of a window. The number of groups depends on the mask; the count assumes full groups.

    Args:
      visible: number of visible cells.
      shared: whether all images share one mask.
      as_published: count the work of published implementations, instead of this one's.
    """
    tokens = [visible * cells.tokens for cells in stages(swin)]
    count = 0
    for site in swin.sites():
        block, n = swin.block(site), tokens[site.stage]
        pairs = traced_pairs(block.windows, n, shared=shared)
        window = math.prod(block.windows.size)
        grouped = n * min(n, window) if n > 2 * window else n**2
        cost = block.cost(site.grid)
        count += n * (cost.project + cost.mix + cost.feed)
        count += cost.pair * (grouped if as_published else min(pairs.values()))
    for stage, n in enumerate(tokens[1:], 1):
        count += linear_flops(swin.layers[stage].downsample.reduction, n)
    return count


def _run(block: Any, x: Float[Array, "b n d"], cells: VisibleCells, ids: Any, form: str, *, remat: bool) -> Array:
    def through(block: Any, x: Array, ids: Any) -> Array:
        return block.run(x, gathered=attend_visible(block, block.heads(x), cells, ids, form))

    if not remat:
        return through(block, x, ids)
    graph, state = nnx.split(block)
    if isinstance(ids, np.ndarray):
        return jax.checkpoint(lambda state, x: through(nnx.merge(graph, state), x, ids))(state, x)
    return jax.checkpoint(lambda state, x, ids: through(nnx.merge(graph, state), x, ids))(state, x, ids)


def stages(swin: SwinTransformer) -> tuple[VisibleCells, ...]:
    """The cells of each stage of a Swin whose map divides into cells."""
    return tuple(VisibleCells(swin.grids[-1], grid[0] // swin.grids[-1][0]) for grid in swin.grids)
