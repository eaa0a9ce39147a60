"""Hiera: a hierarchical transformer without windows that shift or convolutions (Ryali et al., 2023), by timm's names.

Its maps halve by pooling the queries of a stage's first block. Early stages attend inside mask units, later to all.
A scorer leaves out mask units before the first block, as in Hiera's pre-training: the others go through all stages by
themselves. Under other plans rows stay on their map, and those that they drop skip the MLP.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.models.hierarchical import ClassifierHead, HierarchicalHost
from jaxprune.nn import BlockRunner, Conv, LayerNorm, Overhead, Site
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.hiera_block import POOLED, HieraBlock
from jaxprune.nn.host import key_of_scorer
from jaxprune.nn.images import require_float
from jaxprune.nn.linear import normal_02
from jaxprune.nn.patch_embed import pair
from jaxprune.nn.tensor_rules import LAYERS, Rule, convolution, convolution_back
from jaxprune.nn.tokens import all_present, on_map
from jaxprune.ops.resize import resize
from jaxprune.preprocessing import Preprocessing

_SIZES = {
    "tiny": {"embed_dim": 96, "num_heads": 1, "stages": (1, 2, 7, 2)},
    "small": {"embed_dim": 96, "num_heads": 1, "stages": (1, 2, 11, 2)},
    "base": {"embed_dim": 96, "num_heads": 1, "stages": (2, 3, 16, 3)},
    "base_plus": {"embed_dim": 112, "num_heads": 2, "stages": (2, 3, 16, 3)},
    "large": {"embed_dim": 144, "num_heads": 2, "stages": (2, 6, 36, 4)},
    "huge": {"embed_dim": 256, "num_heads": 4, "stages": (2, 6, 36, 4)},
}
TINY = {"img_size": 64, "embed_dim": 8, "num_heads": 1, "stages": (1, 1, 1)}
_PATCH, _UNIT = 4, 8  # per side: pixels of a patch, patches of a mask unit


def variants() -> dict[str, dict[str, Any]]:
    """Returns {timm's name: constructor arguments}."""
    named = {f"hiera_{size}_224": {**sizes, "img_size": 224} for size, sizes in _SIZES.items()}
    positions = {"img_size": 256, "abs_win_pos_embed": True, "init_values": 1e-5}
    named["hiera_base_abswin_256"] = {**_SIZES["base"], **positions}
    named["hiera_small_abswin_256"] = {
        **_SIZES["small"],
        **positions,
        "global_pos_size": (16, 16),
        "use_expand_proj": False,
    }
    return {"hiera": {}, **named}


def preprocessing(name: str, arguments: dict[str, Any]) -> Preprocessing:
    """Returns how images are prepared for a network of this name: timm's default for it."""
    return Preprocessing(pair(arguments.get("img_size", 224)), crop_pct=0.95 if "abswin" in name else 0.9)


class Hiera(HierarchicalHost):
    """Hiera for images.

    Args:
      img_size: height and width in pixels, multiples of 32; an int means a square.
      num_classes: 0 leaves out the classifier.
      embed_dim, num_heads: of the first stage; both double at each stage.
      stages: number of blocks in each stage.
      init_values: LayerScale's initial value; None leaves it out.
      abs_win_pos_embed: one position table for units and one within a unit, instead of one for all patches.
      global_pos_size: (rows, columns) of the position table for units.
      use_expand_proj: see `HieraBlock.expand`.
      drop_path_rate: stochastic depth rate of the last block; rates rise linearly from 0 over all blocks.
      dtype: compute dtype; parameters stay float32.
    """

    prunes_input = True
    no_decay = ("pos_embed*",)
    published_rules = (
        Rule("patch_embed.proj.weight", "patch_embed.proj.kernel", convolution, convolution_back),
        *LAYERS,
    )

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        embed_dim: int = 96,
        num_heads: int = 1,
        stages: Sequence[int] = (2, 3, 16, 3),
        mlp_ratio: float = 4.0,
        init_values: float | None = None,
        abs_win_pos_embed: bool = False,
        global_pos_size: tuple[int, int] = (14, 14),
        use_expand_proj: bool = True,
        drop_path_rate: float = 0.0,
        head_init_scale: float = 1e-3,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        super().__init__()
        height, width = pair(img_size)
        if height % (_PATCH * _UNIT) or width % (_PATCH * _UNIT):
            raise UserError(f"img_size {height}x{width} is not a whole number of mask units of 32 pixels: resize.")
        if not 2 <= len(stages) <= 4:
            raise UserError(f"stages={tuple(stages)}: Hiera has two to four stages.")
        self.img_size, self.grid = (height, width), (height // _PATCH, width // _PATCH)
        self.num_classes, self.depths, self.dtype, self.remat = num_classes, tuple(stages), dtype, remat
        self.patch_embed = _Stem(in_chans, embed_dim, dtype=dtype, rngs=rngs)
        normal_param = lambda *shape: nnx.Param(normal_02(rngs.params(), shape))
        self.pos_embed_win = nnx.data(normal_param(1, embed_dim, _UNIT, _UNIT) if abs_win_pos_embed else None)
        rows = self.grid[0] * self.grid[1]
        self.pos_embed = (
            normal_param(1, embed_dim, *global_pos_size) if abs_win_pos_embed else normal_param(1, rows, embed_dim)
        )
        rates = np.linspace(0, drop_path_rate, sum(stages)).tolist()
        self.blocks, self.maps = nnx.List([]), []
        grid, dim, heads, side = self.grid, embed_dim, num_heads, _UNIT
        for stage, depth in enumerate(stages):
            for index in range(depth):
                pools = stage > 0 and index == 0
                out, heads = (2 * dim, 2 * heads) if pools else (dim, heads)
                # The first block of a stage attends as in the previous stage.
                inside = (stage - 1 if pools else stage) < 2
                block = HieraBlock(
                    dim,
                    out,
                    heads,
                    grid=grid,
                    side=side,
                    pools=pools,
                    inside=inside,
                    mlp_ratio=mlp_ratio,
                    init_values=init_values,
                    expand=use_expand_proj,
                    drop_path=rates[len(self.blocks)],
                    dtype=dtype,
                    rngs=rngs,
                )
                self.blocks.append(block)
                if pools:
                    grid, side = (grid[0] // POOLED, grid[1] // POOLED), side // POOLED
                dim = out
                self.maps.append((stage, grid, dim))
        self.maps, self.embed_dim = tuple(self.maps), dim
        self.head = ClassifierHead(dim, num_classes, norm=LayerNorm(dim), scale=head_init_scale, rngs=rngs)

    def sites(self, img_size: int | Sequence[int] | None = None) -> tuple[Site, ...]:
        """The blocks; rows are never removed, and attention is not reported."""
        return tuple(
            Site(layer, f"blocks.{layer}", grid, 0, dim, 0, removable=False, stage=stage)
            for layer, (stage, grid, dim) in enumerate(self.maps)
        )

    def entrance(self, img_size: int | Sequence[int] | None = None) -> Site:
        """The mask units, which are dropped as a whole."""
        return self.sites()[0]._replace(grid=self.units, removable=True)

    def sites_behind(self, num_keep: int, img_size: int | Sequence[int] | None = None) -> tuple[Site, ...]:
        """The blocks on a column of `num_keep` mask units."""
        side = lambda site: site.grid[0] // self.units[0]
        return tuple(site._replace(grid=(num_keep * side(site), side(site))) for site in self.sites())

    @property
    def units(self) -> tuple[int, int]:
        """Rows and columns of mask units."""
        return self.grid[0] // _UNIT, self.grid[1] // _UNIT

    def overhead(self, img_size: int | Sequence[int] | None = None) -> Overhead:
        """The cost of embedding one patch and of the classifier."""
        head = 0 if self.head.fc is None else linear_flops(self.head.fc, 1)
        return Overhead(self.patch_embed.proj.kernel.size, head)

    def run_blocks(
        self,
        images: Float[Array, "b H W c"],
        *,
        taps: Mapping[int, frozenset[str]] | None = None,
        stop: int | None = None,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> BlockRunner:
        """Embeds images, without the mask units that a plan's scorer drops, and runs the first `stop` blocks."""
        require_float(images, 4)
        if images.shape[1:3] != self.img_size:
            raise UserError(
                f"Images of {images.shape[1:3]} pixels do not fit a model for {self.img_size}: resize them."
            )
        pruner: Any = self.pruner
        selection = None if pruner is None else pruner.choose(images, key_of_scorer(key, self.sites()))
        if pruner is None or selection is None or pruner.num_tokens() == math.prod(self.units):
            tokens = on_map(self.embed(images), self.grid)
        else:
            units, places = self.embed_units(images, selection.kept)
            b, k, rows, _ = units.shape
            x = pruner.with_gradient(units.reshape(b, k, -1), selection).reshape(b, k * rows, -1)
            tokens = all_present(x, 0, places)._replace(assign=self._rows_of_patches(selection.row_map))
        runner = BlockRunner(tokens, 0, taps=taps, selection=selection, train=train, key=key, remat=self.remat)
        runner.tokens = tokens  # the step decides on units, but rows are patches
        for site in self.sites()[:stop]:
            runner.run(self.block(site), site.grid)
        return runner

    def embed(self, images: Float[Array, "b H W c"], ids_keep: Any = None) -> Float[Array, "b n d"]:
        """Embeds all patches."""
        maps = self.patch_embed.proj(images.astype(self.dtype or images.dtype))
        x = maps.reshape(maps.shape[0], -1, maps.shape[-1])
        return x + self.positions().astype(x.dtype)

    def embed_units(
        self, images: Float[Array, "b H W c"], ids: Int[Array, "b k"]
    ) -> tuple[Float[Array, "b k n d"], Float[Array, "b m 2"]]:
        """Embeds the patches of the mask units `ids`, from images in which the others are zero.

        Returns:
          (the patches, unit by unit and in raster order within one, and their (row, column) on the map).
        """
        (down, across), side, c = self.units, _PATCH * _UNIT, images.shape[-1]
        unit_mask = jax.vmap(lambda ids: jnp.zeros((down * across,), images.dtype).at[ids].set(1))(ids)
        mask = jnp.repeat(jnp.repeat(unit_mask.reshape(-1, down, across, 1), side, axis=1), side, axis=2)
        before = self.patch_embed.proj.kernel.shape[0] // 2  # pixels of its neighbours that a patch sees
        padded = jnp.pad(images * mask, ((0, 0), (before, before), (before, before), (0, 0)))
        crop_side = side - _PATCH + self.patch_embed.proj.kernel.shape[0]

        def crop(image: Float[Array, "H W c"], unit: Int[Array, ""]) -> Float[Array, "s s c"]:
            corner = (unit // across * side, unit % across * side, 0)
            return jax.lax.dynamic_slice(image, corner, (crop_side, crop_side, c))

        crops = jax.vmap(lambda image, ids: jax.vmap(lambda unit: crop(image, unit))(ids))(padded, ids)
        b, k = ids.shape
        crops = crops.reshape(b * k, crop_side, crop_side, c).astype(self.dtype or images.dtype)
        maps = self.patch_embed.proj(crops, padding=0)
        inside = np.stack(np.divmod(np.arange(_UNIT**2), _UNIT), axis=1)
        corners = jnp.stack([ids // across, ids % across], axis=-1) * _UNIT
        places = corners[:, :, None] + jnp.asarray(inside)[None, None]
        table = self.positions()[0].astype(maps.dtype)
        x = maps.reshape(b, k, _UNIT**2, -1) + table[places[..., 0] * self.grid[1] + places[..., 1]]
        return x, places.reshape(b, k * _UNIT**2, 2).astype(jnp.float32)

    def _rows_of_patches(self, row_map: Int[Array, "b u"]) -> Int[Array, "b p"]:
        """The row of each patch of the map, given that of each unit in `row_map`; -1 = dropped."""
        rows, columns = (np.arange(side) for side in self.grid)
        unit = rows[:, None] // _UNIT * self.units[1] + columns[None] // _UNIT
        inside = (rows[:, None] % _UNIT * _UNIT + columns[None] % _UNIT).reshape(1, -1)
        places = row_map[:, unit.reshape(-1)]
        return jnp.where(places < 0, -1, places * _UNIT**2 + jnp.asarray(inside)).astype(jnp.int32)

    def positions(self) -> Float[Array, "1 n d"]:
        """The position of every patch."""
        table = self.pos_embed[...]
        if self.pos_embed_win is None:
            return table
        units = jnp.tile(self.pos_embed_win[...], (1, 1, self.grid[0] // _UNIT, self.grid[1] // _UNIT))
        resized = resize(table.transpose(0, 2, 3, 1), self.grid, "bicubic", antialias=True)
        return (resized + units.transpose(0, 2, 3, 1)).reshape(1, -1, table.shape[1])


class _Stem(nnx.Module):
    """Overlapping 7×7 patches with stride 4."""

    def __init__(self, in_chans: int, dim: int, *, dtype: Any, rngs: nnx.Rngs):
        self.proj = Conv(in_chans, dim, 7, stride=_PATCH, padding=3, use_bias=True, dtype=dtype, rngs=rngs)


NETWORK = Hiera
