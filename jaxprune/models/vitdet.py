"""ViTDet's backbone (Li et al., 2022), as in detectron2: a plain ViT without a CLS token, for large images.

Most blocks attend inside windows, a few to the whole map; attention has decomposed relative positions, and absolute
ones are interpolated in each pass from the grid of pre-training.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.models.vitdet_block import ViTDetBlock
from jaxprune.nn import BlockRunner, Host, Linear, Overhead, PatchEmbed, Site, Tokens
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.images import require_float
from jaxprune.nn.linear import normal_02
from jaxprune.nn.patch_embed import grid_of, pair
from jaxprune.nn.tokens import all_present, coordinates
from jaxprune.ops.posembed import Resampling, resample
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
# Stretches of blocks, of each of which the last attends to the whole map.
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
    beside_pretraining = ("blocks.*.attn.rel_pos_*",)
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
          UserError: rows may have merged before a block with windows, where each row needs a place of its own.
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
            reducer: Any = block.reducer
            changes = (
                reducer is not None and reducer.drops is not True and reducer.num_tokens() < reducer.step.tokens_in
            )
            merging = layer if changes and merging is None else merging
            early = reducer is not None and changes and reducer.where in ("before", "ahead", "anew", "attention")
            if block.windows is not None and merging is not None and (merging < layer or early):
                raise UserError(
                    f"Rows that the method of block {merging} leaves may have no place of their own in the windows of "
                    f"block {layer}: use one that always drops rows, such as topk, or reduce after the last block with "
                    "windows."
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
