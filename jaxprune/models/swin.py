"""Swin transformers, V1 and V2, with timm's names and numerics (Liu et al., 2021; Liu et al., 2022).

Rows are never removed from their map: rows that a plan drops skip the MLP of a block and pass unchanged (PaPr). Rows
that merge (ToMe) stay merged until their stage ends.
"""

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.models.hierarchical import ClassifierHead, HierarchicalHost, Stage
from jaxprune.nn import BlockRunner, LayerNorm, Linear, Overhead, PatchEmbed, Site
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.images import require_float
from jaxprune.nn.linear import normal_02
from jaxprune.nn.patch_embed import pair
from jaxprune.nn.swin_block import EPS, SwinBlock
from jaxprune.nn.tokens import on_map
from jaxprune.nn.window_cells import Cells
from jaxprune.nn.windows import Windows
from jaxprune.preprocessing import Preprocessing

_SIZES = {
    "tiny": {"embed_dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24)},
    "small": {"embed_dim": 96, "depths": (2, 2, 18, 2), "num_heads": (3, 6, 12, 24)},
    "base": {"embed_dim": 128, "depths": (2, 2, 18, 2), "num_heads": (4, 8, 16, 32)},
    "large": {"embed_dim": 192, "depths": (2, 2, 18, 2), "num_heads": (6, 12, 24, 48)},
}
TINY = {"img_size": 32, "patch_size": 4, "embed_dim": 8, "depths": (1, 2), "num_heads": (1, 2), "window_size": 3}


def variants() -> dict[str, dict[str, Any]]:
    """Returns {timm's name: constructor arguments}."""
    named: dict[str, dict[str, Any]] = {"swin": {}}
    for size, window, image in (
        *((size, 7, 224) for size in _SIZES),
        ("base", 12, 384),
        ("large", 12, 384),
        ("base", 6, 192),  # SimMIM's pre-training; timm has no file for it
    ):
        named[f"swin_{size}_patch4_window{window}_{image}"] = {
            **_SIZES[size],
            "window_size": window,
            "img_size": image,
        }
    # Windows by stage, found by a search (Chen et al., 2021).
    for size, depth, windows in (
        ("tiny", 6, (7, 7, 14, 7)),
        ("small", 18, (14, 14, 14, 7)),
        ("base", 30, (7, 7, 14, 7)),
    ):
        sizes = {**_SIZES["tiny"], "depths": (2, 2, depth, 2)}
        named[f"swin_s3_{size}_224"] = {**sizes, "window_size": windows, "img_size": 224}
    second = {"version": 2}
    for size in ("tiny", "small", "base"):
        for window in (8, 16):
            named[f"swinv2_{size}_window{window}_256"] = {
                **_SIZES[size],
                **second,
                "window_size": window,
                "img_size": 256,
            }
    for size, classes in (("base", 21841), ("large", 21841)):
        sizes = {**_SIZES[size], **second, "window_size": 12, "img_size": 192, "num_classes": classes}
        named[f"swinv2_{size}_window12_192"] = sizes
        for window, image in ((16, 256), (24, 384)):
            named[f"swinv2_{size}_window12to{window}_192to{image}"] = {
                **_SIZES[size],
                **second,
                "window_size": window,
                "img_size": image,
                "pretrained_window_sizes": (12, 12, 12, 6),
            }
    return named


def preprocessing(name: str, arguments: dict[str, Any]) -> Preprocessing:
    """Returns how images are prepared for a network of this name: timm's default for it."""
    size = pair(arguments.get("img_size", 224))
    return Preprocessing(size, crop_pct=1.0 if size[0] >= 384 else 0.9)


def _window_sizes(window_size: int | Sequence[Any], stages: int) -> list[tuple[int, int]]:
    """The window size of each stage; two numbers are (height, width) for all stages, as in timm."""
    if isinstance(window_size, numbers.Integral) or len(window_size) == 2:
        return [pair(window_size)] * stages
    if len(window_size) != stages:
        raise UserError(f"window_size={tuple(window_size)} has {len(window_size)} stages, but there are {stages}.")
    return [pair(size) for size in window_size]


class Merging(nnx.Module):
    """Merges 2×2 tokens into one of twice the width: V1 normalises before the projection, V2 after it."""

    def __init__(
        self,
        dim: int,
        *,
        version: int,
        norm_eps: float = EPS,
        kernel_init=normal_02,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        self.reduction = Linear(4 * dim, 2 * dim, use_bias=False, kernel_init=kernel_init, dtype=dtype, rngs=rngs)
        self.norm = LayerNorm(4 * dim if version == 1 else 2 * dim, eps=norm_eps)
        self.version = version

    def __call__(self, x: Float[Array, "b n d"], grid: tuple[int, int]) -> Float[Array, "b m e"]:
        """Merges the tokens of a map; odd sides are padded with zeros."""
        b, _, d = x.shape
        maps = jnp.pad(x.reshape(b, *grid, d), ((0, 0), (0, grid[0] % 2), (0, grid[1] % 2), (0, 0)))
        rows, columns = (-(-side // 2) for side in grid)
        # In the order upper left, lower left, upper right, lower right.
        cells = maps.reshape(b, rows, 2, columns, 2, d).transpose(0, 1, 3, 4, 2, 5).reshape(b, rows * columns, 4 * d)
        return self.reduction(self.norm(cells)) if self.version == 1 else self.norm(self.reduction(cells))


class SwinTransformer(HierarchicalHost):
    """Swin: blocks with window attention on maps that halve at each stage, and average pooling.

    Args:
      img_size: height and width in pixels; an int means a square.
      patch_size: likewise.
      num_classes: 0 leaves out the classifier.
      embed_dim: width of the first stage; it doubles at each stage.
      depths: number of blocks in each stage.
      num_heads: attention heads of each stage; an int is used for all.
      window_size: (height, width) or an int for all stages; or one of these per stage (except for networks of two
        stages). A smaller map is one window.
      norm_eps: epsilon of the layer norms.
      version: 1 or 2.
      pretrained_window_sizes: V2: the window size of pre-training, by stage; zeros mean this network's.
      drop_path_rate: stochastic depth rate of the last block; rates rise linearly from 0 over all blocks.
      kernel_init: initialiser of the linear layers of blocks and patch merging.
      patch_kernel_init: initialiser of the patch embedding, by default see `PatchEmbed`.
      dtype: compute dtype; parameters stay float32.
    """

    no_decay = ("*relative_position_bias_table", "*.cpb_mlp.*", "*.logit_scale")
    downsampling_ends = True  # as in SimMIM's fine-tuning

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 4,
        in_chans: int = 3,
        num_classes: int = 1000,
        embed_dim: int = 96,
        depths: Sequence[int] = (2, 2, 6, 2),
        num_heads: int | Sequence[int] = (3, 6, 12, 24),
        window_size: int | Sequence[Any] = 7,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        norm_eps: float = EPS,
        version: int = 1,
        pretrained_window_sizes: Sequence[int] = (0, 0, 0, 0),
        drop_path_rate: float = 0.0,
        head_init_scale: float = 1.0,
        kernel_init=normal_02,
        patch_kernel_init=None,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        super().__init__()
        if version not in (1, 2):
            raise UserError(f"There is no version {version} of Swin: use 1 or 2.")
        stages = range(len(depths))
        heads = (int(num_heads),) * len(depths) if isinstance(num_heads, numbers.Integral) else tuple(num_heads)
        if len(heads) != len(depths):
            raise UserError(f"num_heads={heads} has {len(heads)} stages, but depths={tuple(depths)} has {len(depths)}.")
        if min(depths, default=0) < 1:
            raise UserError(f"depths={tuple(depths)}: every stage of a Swin has a block.")
        if version == 2 and len(pretrained_window_sizes) < len(depths):
            raise UserError(
                f"pretrained_window_sizes={tuple(pretrained_window_sizes)} has {len(pretrained_window_sizes)} stages, "
                f"but depths={tuple(depths)} has {len(depths)}."
            )
        sizes = _window_sizes(window_size, len(depths))
        self.patch_embed = PatchEmbed(
            img_size,
            patch_size,
            in_chans,
            embed_dim,
            norm=LayerNorm(embed_dim, eps=norm_eps),
            kernel_init=patch_kernel_init,
            dtype=dtype,
            rngs=rngs,
        )
        grids = [self.patch_embed.grid]
        for _ in stages[1:]:
            grids.append((-(-grids[-1][0] // 2), -(-grids[-1][1] // 2)))
        self.grids, self.depths, self.heads = tuple(grids), tuple(depths), heads
        self.widths = tuple(embed_dim << stage for stage in stages)
        self.grid, self.num_classes, self.dtype, self.remat = self.grids[0], num_classes, dtype, remat
        rates = iter(np.linspace(0, drop_path_rate, sum(depths)).tolist())

        def block(stage: int, index: int) -> SwinBlock:
            return SwinBlock(
                self.widths[stage],
                heads[stage],
                windows=Windows.of(self.grids[stage], sizes[stage], shifted=index % 2 == 1),
                cells=Cells.of(self.grids[stage], sizes[stage], shifted=depths[stage] > 1),
                version=version,
                trained=pair(pretrained_window_sizes[stage]) if version == 2 else (0, 0),
                mlp_ratio=mlp_ratio,
                qkv_bias=qkv_bias,
                norm_eps=norm_eps,
                drop_path=next(rates),
                kernel_init=kernel_init,
                dtype=dtype,
                rngs=rngs,
            )

        merging = lambda stage: Merging(
            self.widths[stage - 1],
            version=version,
            norm_eps=norm_eps,
            kernel_init=kernel_init,
            dtype=dtype,
            rngs=rngs,
        )
        self.layers = nnx.List(
            Stage(merging(stage) if stage else None, [block(stage, index) for index in range(depths[stage])])
            for stage in stages
        )
        self.norm = LayerNorm(self.widths[-1], eps=norm_eps)
        self.head = ClassifierHead(self.widths[-1], num_classes, scale=head_init_scale, rngs=rngs)

    def sites(self, img_size: int | Sequence[int] | None = None) -> tuple[Site, ...]:
        """The blocks, stage by stage; rows are never removed."""
        return tuple(
            Site(
                layer,
                f"layers.{stage}.blocks.{index}",
                self.grids[stage],
                0,
                self.widths[stage],
                self.heads[stage],
                removable=False,
                stage=stage,
                windows=self.layers[stage].blocks[index].windows,
                cells=self.layers[stage].blocks[index].cells,
            )
            for layer, (stage, index) in enumerate(self.places())
        )

    def overhead(self, img_size: int | Sequence[int] | None = None) -> Overhead:
        """The cost of embedding one patch, of the classifier and of patch merging."""
        merging = sum(
            math.prod(grid) * linear_flops(layer.downsample.reduction, 1)
            for grid, layer in zip(self.grids[1:], list(self.layers)[1:], strict=True)
        )
        head = 0 if self.head.fc is None else linear_flops(self.head.fc, 1)
        return Overhead(linear_flops(self.patch_embed.proj, 1), head, merging)

    def run_blocks(
        self,
        images: Float[Array, "b H W c"],
        *,
        taps: Mapping[int, frozenset[str]] | None = None,
        stop: int | None = None,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> BlockRunner:
        """Embeds images and runs the first `stop` blocks; guided by the scores of a plan's scorer, if any."""
        require_float(images, 4)
        x = self.patch_embed(images.astype(self.dtype or images.dtype))
        return self.encode(x, scores=self.guiding_scores(images, key), taps=taps, stop=stop, train=train, key=key)

    def encode(
        self,
        x: Float[Array, "b n d"],
        *,
        scores: Any = None,
        taps: Mapping[int, frozenset[str]] | None = None,
        stop: int | None = None,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> BlockRunner:
        """Runs the first `stop` blocks over embedded patches; the final norm is not applied (`final_norm`).

        Args:
          scores: the plan's scores of the images, see `Host.guiding_scores`.
        """
        runner = BlockRunner(
            on_map(x, self.grids[0]), 0, taps=taps, scores=scores, train=train, key=key, remat=self.remat
        )
        for site in self.sites()[:stop]:
            if site.stage and site.layer - 1 in self.intermediate_layers():
                merging = self.layers[site.stage].downsample
                runner.tokens = on_map(merging(runner.tokens.x, self.grids[site.stage - 1]), site.grid)
            runner.run(self.block(site), site.grid)
            if site.layer in self.intermediate_layers():
                runner.unmerge(site.grid)
        return runner

    def final_norm(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        """Applies the norm after the last block."""
        return self.norm(x)


NETWORK = SwinTransformer
