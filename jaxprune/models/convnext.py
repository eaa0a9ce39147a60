"""ConvNeXt, V1 and V2, with timm's names and numerics (Liu et al., 2022; Woo et al., 2023).

Rows are never removed from their map: under a plan, the depth-wise convolution sees the whole map, and dropped rows
skip the point-wise layers. PaPr, as published, also zeroes the residual of dropped rows in evaluation.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.models.hierarchical import ClassifierHead, HierarchicalHost, Stage
from jaxprune.models.vit_names import PIXELS
from jaxprune.nn import BlockRunner, Conv, LayerNorm, Linear, Mlp, Overhead, Reducible, Site, Tokens
from jaxprune.nn.block_cost import BlockCost, linear_flops
from jaxprune.nn.drop_path import DropPath
from jaxprune.nn.images import require_float
from jaxprune.nn.optional_key import split_key
from jaxprune.nn.patch_embed import pair
from jaxprune.nn.tensor_rules import (
    LAYERS,
    Rule,
    convolution,
    convolution_back,
    patches,
    patches_back,
    pointwise,
    pointwise_back,
)
from jaxprune.nn.tokens import NOTHING, Attended, on_map
from jaxprune.ops.patches import patchify
from jaxprune.preprocessing import Preprocessing

_SIZES = {
    "atto": ((2, 2, 6, 2), (40, 80, 160, 320)),
    "femto": ((2, 2, 6, 2), (48, 96, 192, 384)),
    "pico": ((2, 2, 6, 2), (64, 128, 256, 512)),
    "nano": ((2, 2, 8, 2), (80, 160, 320, 640)),
    "tiny": ((3, 3, 9, 3), (96, 192, 384, 768)),
    "small": ((3, 3, 27, 3), (96, 192, 384, 768)),
    "base": ((3, 3, 27, 3), (128, 256, 512, 1024)),
    "large": ((3, 3, 27, 3), (192, 384, 768, 1536)),
    "xlarge": ((3, 3, 27, 3), (256, 512, 1024, 2048)),
    "huge": ((3, 3, 27, 3), (352, 704, 1408, 2816)),
}
TINY = {"depths": (1, 1), "dims": (8, 16), "patch_size": 4}
_SMALL = ("atto", "femto", "pico", "nano")
# Tags of the default files in timm that are not prepared like most, at 224 pixels with a crop_pct of 0.875.
_TAGS = {
    **dict.fromkeys(("convnext_nano", "convnext_tiny", "convnext_small"), "in12k_ft_in1k"),
    "convnext_xxlarge": "clip_laion2b_soup_ft_in1k",
    "convnextv2_huge": "fcmae_ft_in22k_in1k_384",
}


def variants() -> dict[str, dict[str, Any]]:
    """Returns {timm's name: constructor arguments}."""
    named: dict[str, dict[str, Any]] = {"convnext": {}}
    second = {"use_grn": True, "ls_init_value": None}
    for size, (depths, dims) in _SIZES.items():
        sizes = {"depths": depths, "dims": dims} | ({"conv_mlp": True} if size in _SMALL else {})
        if size != "huge":
            named[f"convnext_{size}"] = sizes
        if size != "xlarge":
            named[f"convnextv2_{size}"] = {**sizes, **second}
    sizes = {"depths": (3, 4, 30, 3), "dims": (384, 768, 1536, 3072), "norm_eps": 1e-5}
    return {**named, "convnext_xxlarge": sizes}


def preprocessing(name: str, arguments: dict[str, Any]) -> Preprocessing:
    """Returns how images are prepared for a network of this name: as for timm's file of its tag."""
    network, _, tag = name.partition(".")
    tag = tag or _TAGS.get(network, "")
    # A number at the end is the side; at 384 and 512 whole images are resized, but for those trained on LAION-A.
    clip, last = tag.startswith("clip"), tag.rpartition("_")[2]
    side = int(last) if last.isdigit() else 384 if tag.startswith("r384") else 256 if clip else 224
    squashed = last in ("384", "512") and not tag.startswith("clip_laiona_")
    crop_pct = 1.0 if side > 224 else 0.95 if "in12k" in tag or tag == "d1h_in1k" else 0.875
    mean, std = PIXELS["clip" if clip else "imagenet"]
    return Preprocessing((side, side), "none" if squashed else "center", crop_pct, mean=mean, std=std)


class ResponseNorm(nnx.Module):
    """Global response normalisation: scales each channel by its relative norm, with a residual (Woo et al., 2023)."""

    def __init__(self, dim: int):
        self.weight = nnx.Param(jnp.zeros((dim,), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((dim,), jnp.float32))

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        wide = x.astype(jnp.float32)
        energy = jnp.linalg.norm(wide, axis=1, keepdims=True)
        share = energy / (energy.mean(-1, keepdims=True) + 1e-6)
        scaled = self.weight[...][None, None] * (wide * share) + self.bias[...][None, None]
        return (wide + scaled).astype(x.dtype)


class ResponseMlp(nnx.Module):
    """Linear, GELU, `ResponseNorm`, Linear. On a subset of the rows, the norm sees these rows only."""

    def __init__(self, dim: int, hidden: int, *, dtype: Any = None, rngs: nnx.Rngs):
        self.fc1 = Linear(dim, hidden, dtype=dtype, rngs=rngs)
        self.grn = ResponseNorm(hidden)
        self.fc2 = Linear(hidden, dim, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        return self.fc2(self.grn(jax.nn.gelu(self.fc1(x), approximate=False)))


class ConvNeXtBlock(Reducible):
    """`x += gamma * mlp(norm(conv_dw(x)))`, with a 7×7 depth-wise convolution.

    Args:
      gamma: initial value of the LayerScale; None leaves it out.
      use_grn: V2's MLP.
    """

    def __init__(
        self,
        dim: int,
        *,
        kernel_size: int = 7,
        mlp_ratio: float = 4.0,
        gamma: float | None = 1e-6,
        use_grn: bool = False,
        norm_eps: float = 1e-6,
        drop_path: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        super().__init__(num_prefix_tokens=0, removable=False)
        self.conv_dw = Conv(dim, dim, kernel_size, depthwise=True, use_bias=True, dtype=dtype, rngs=rngs)
        self.norm = LayerNorm(dim, eps=norm_eps)
        hidden = int(mlp_ratio * dim)
        self.mlp: Any = (ResponseMlp if use_grn else Mlp)(dim, hidden, dtype=dtype, rngs=rngs)
        self.gamma = nnx.data(None if gamma is None else nnx.Param(jnp.full((dim,), gamma, jnp.float32)))
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
        """Runs the block, see `nn.Block`; `grid` is required, and there is no attention to report."""
        if grid is None:
            raise UserError("A block of ConvNeXt needs the grid of its map.")
        b, n, d = tokens.x.shape
        drop_key, reducer_key = split_key(key)
        mixed = tokens._replace(x=self.conv_dw(tokens.x.reshape(b, *grid, d)).reshape(b, n, d))
        branch, report = self.skip(mixed, attended, self.pointwise, train=train, key=reducer_key)
        residual = tokens.x
        if report is not None and not train and self.reducer.clears_map and self.reducer.step.restore == "zero":
            residual = residual * (report.row_map >= 0)[..., None].astype(residual.dtype)
        branch = self.drop_path(branch, drop_key if train else None)
        return tokens._replace(x=residual + branch), NOTHING, report

    def pointwise(self, x: Float[Array, "b k d"]) -> Float[Array, "b k d"]:
        """What comes after the depth-wise convolution, for any rows."""
        out = self.mlp(self.norm(x))
        return out if self.gamma is None else out * self.gamma[...].astype(out.dtype)[None, None]

    def cost(self, grid: tuple[int, ...] | None = None) -> BlockCost:
        """The cost of the block, from shapes only."""
        if grid is None:
            raise UserError("The cost of a block of ConvNeXt depends on the grid of its map: give it.")
        feed = linear_flops(self.mlp.fc1, 1) + linear_flops(self.mlp.fc2, 1)
        return BlockCost(project=0, pair=0, mix=0, feed=feed, fixed=math.prod(grid) * self.conv_dw.kernel.size)


class Cut(nnx.Module):
    """A convolution with stride equal to its kernel size, as a matrix over a patch's values; remainders are cut off."""

    def __init__(self, dim: int, out: int, size: int, *, dtype: Any = None, rngs: nnx.Rngs):
        layer = Linear(size * size * dim, out, dtype=dtype, rngs=rngs)
        self.kernel, self.bias, self.size, self.dtype = layer.kernel, layer.bias, size, dtype

    def __call__(self, maps: Float[Array, "b h w d"]) -> Float[Array, "b n e"]:
        height, width = (side // self.size * self.size for side in maps.shape[1:3])
        rows = patchify(maps[:, :height, :width].astype(self.dtype or maps.dtype), (self.size, self.size))
        b, n, values = rows.shape
        out = rows.reshape(-1, values) @ self.kernel[...].astype(rows.dtype) + self.bias[...].astype(rows.dtype)[None]
        return out.reshape(b, n, -1)


_RULES = (
    Rule("stem.0.weight", "stem.0.kernel", patches, patches_back),
    Rule("stem.1.weight", "stem.1.scale"),
    Rule("{any}.downsample.0.weight", "{any}.downsample.0.scale"),
    Rule("{any}.downsample.1.weight", "{any}.downsample.1.kernel", patches, lambda t, _: patches_back(t, (2, 2))),
    Rule("{any}.conv_dw.weight", "{any}.conv_dw.kernel", convolution, convolution_back),
    Rule("{any}.grn.weight", "{any}.grn.weight"),
)
_POINTWISE = tuple(
    Rule(f"{{any}}.mlp.{fc}.weight", f"{{any}}.mlp.{fc}.kernel", pointwise, pointwise_back) for fc in ("fc1", "fc2")
)


class ConvNeXt(HierarchicalHost):
    """ConvNeXt: a patchify stem, stages of blocks on ever smaller maps, and average pooling. Any image size.

    Args:
      num_classes: 0 leaves out the classifier.
      depths: number of blocks in each stage.
      dims: width of each stage.
      patch_size: patch size of the stem, in pixels.
      kernel_sizes: side of the depth-wise convolutions' filters, an odd number.
      ls_init_value: initial value of the LayerScale; None leaves it out (V2).
      use_grn: V2's MLP.
      conv_mlp: whether timm stores the point-wise layers as convolutions; the computation is the same.
      norm_eps: epsilon of the layer norms.
      drop_path_rate: stochastic depth rate of the last block; rates rise linearly from 0 over all blocks.
      dtype: compute dtype; parameters stay float32.
    """

    no_decay = ()  # LayerScale and GRN parameters are vectors

    def __init__(
        self,
        *,
        in_chans: int = 3,
        num_classes: int = 1000,
        depths: Sequence[int] = (3, 3, 9, 3),
        dims: Sequence[int] = (96, 192, 384, 768),
        patch_size: int = 4,
        kernel_sizes: int = 7,
        mlp_ratio: float = 4.0,
        ls_init_value: float | None = 1e-6,
        use_grn: bool = False,
        conv_mlp: bool = False,
        norm_eps: float = 1e-6,
        drop_path_rate: float = 0.0,
        head_init_scale: float = 1.0,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        super().__init__()
        if len(dims) != len(depths):
            raise UserError(f"dims={tuple(dims)} has {len(dims)} stages, but depths={tuple(depths)} has {len(depths)}.")
        if kernel_sizes % 2 == 0:
            raise UserError(f"kernel_sizes={kernel_sizes}: a depth-wise kernel has a centre only if its side is odd.")
        self.depths, self.dims, self.patch_size = tuple(depths), tuple(dims), patch_size
        self.num_classes, self.dtype, self.remat, self.embed_dim = num_classes, dtype, remat, dims[-1]
        self.conv_mlp = conv_mlp
        common = {"dtype": dtype, "rngs": rngs}
        norm = lambda width: LayerNorm(width, eps=norm_eps)
        rates = iter(np.linspace(0, drop_path_rate, sum(depths)).tolist())
        self.stem: Any = nnx.List([Cut(in_chans, dims[0], patch_size, **common), norm(dims[0])])

        def block(stage: int) -> ConvNeXtBlock:
            return ConvNeXtBlock(
                dims[stage],
                kernel_size=kernel_sizes,
                mlp_ratio=mlp_ratio,
                gamma=ls_init_value,
                use_grn=use_grn,
                norm_eps=norm_eps,
                drop_path=next(rates),
                **common,
            )

        between = lambda stage: nnx.List([norm(dims[stage - 1]), Cut(dims[stage - 1], dims[stage], 2, **common)])
        self.stages = nnx.List(
            Stage(between(stage) if stage else None, [block(stage) for _ in range(depth)])
            for stage, depth in enumerate(depths)
        )
        self.head = ClassifierHead(dims[-1], num_classes, norm=norm(dims[-1]), scale=head_init_scale, rngs=rngs)

    def grids(self, img_size: int | Sequence[int] | None = None) -> list[tuple[int, int]]:
        """The map of each stage for an image size, by default that of `preprocessing`; remainders are cut off."""
        record = getattr(self, "preprocessing", None)
        usual = 224 if record is None else record.img_size
        grids = [tuple(side // self.patch_size for side in pair(usual if img_size is None else img_size))]
        for _ in self.depths[1:]:
            grids.append(tuple(side // 2 for side in grids[-1]))
        if min(grids[-1]) < 1:
            least = self.patch_size * 2 ** (len(self.depths) - 1)
            raise UserError(f"Images of {img_size} pixels are too small for the last map: use {least} or more.")
        return [(rows, columns) for rows, columns in grids]

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """How timm names and lays out the weights."""
        return (*_RULES, *(_POINTWISE if self.conv_mlp else ()), *LAYERS)

    @property
    def grid(self) -> tuple[int, int]:
        """The first map at the default image size."""
        return self.grids()[0]

    def sites(self, img_size: int | Sequence[int] | None = None) -> tuple[Site, ...]:
        """The blocks, stage by stage; rows are never removed, and there is no attention."""
        grids = self.grids(img_size)
        return tuple(
            Site(
                layer,
                f"stages.{stage}.blocks.{index}",
                grids[stage],
                0,
                self.dims[stage],
                0,
                removable=False,
                stage=stage,
            )
            for layer, (stage, index) in enumerate(self.places())
        )

    def overhead(self, img_size: int | Sequence[int] | None = None) -> Overhead:
        """The cost of embedding one patch, of the classifier and of the layers between stages."""
        between = sum(
            math.prod(grid) * stage.downsample[1].kernel.size
            for grid, stage in zip(self.grids(img_size)[1:], list(self.stages)[1:], strict=True)
        )
        return Overhead(self.stem[0].kernel.size, linear_flops(self.head.fc, 1) if self.head.fc else 0, between)

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
        sites = self.sites(images.shape[1:-1])
        embed, norm = self.stem
        x = norm(embed(images.astype(self.dtype or images.dtype)))
        scores = self.guiding_scores(images, key)
        runner = BlockRunner(
            on_map(x, sites[0].grid), 0, taps=taps, scores=scores, train=train, key=key, remat=self.remat
        )
        for before, site in zip((None, *sites), sites[:stop], strict=False):
            if before is not None and before.stage != site.stage:
                norm, cut = self.stages[site.stage].downsample
                x = norm(runner.tokens.x)
                runner.tokens = on_map(cut(x.reshape(x.shape[0], *before.grid, -1)), site.grid)
            runner.run(self.block(site), site.grid)
        return runner


NETWORK = ConvNeXt
