"""The vision transformer and its variants, with timm's names and numerics.

Dosovitskiy et al., 2021; Touvron et al., 2021. The variants are in `vit_styles`, timm's names in `vit_names`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError, unknown
from jaxprune.models.vit_names import preprocessing, variants
from jaxprune.models.vit_styles import STYLES
from jaxprune.nn import Block, BlockRunner, Host, Linear, Mlp, Overhead, PatchEmbed, Site, Tokens
from jaxprune.nn.attention_pool import AttentionPool
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.images import require_float
from jaxprune.nn.linear import normal_02
from jaxprune.nn.norm import LayerNorm, make_norm
from jaxprune.nn.params import Computed
from jaxprune.nn.patch_embed import grid_of
from jaxprune.nn.tokens import all_present, coordinates
from jaxprune.ops.posembed import Resampling, sincos_2d

POOLINGS = ("token", "avg", "map")
POSITIONS = ("learn", "sincos", "none")


class VisionTransformer(Host):
    """A ViT.

    Args:
      style: the variant, a key of `vit_styles.STYLES`; "vit" is the plain one.
      img_size: height and width in pixels; an int means a square.
      patch_size: likewise.
      num_classes: 0 leaves out the head; the logits are then the pooled features.
      global_pool: "token" reads the CLS token after the final norm; "avg" averages the patch tokens and normalises
        the mean (`fc_norm`); "map" lets a learned query attend to the tokens (`nn.attention_pool`).
      class_token: whether there is a CLS token, in front.
      num_cls_tokens: number of CLS tokens, if there is one; "token" then pools their mean (Pixio).
      cls_token_mlp: whether an MLP maps the CLS token before its position is added, as in TEC's fine-tuning.
      dist_token: whether a distillation token with its own head follows it; the logits are the mean of both heads, and
        without classes the pooled features that of both tokens.
      reg_tokens: number of register tokens, after these.
      no_embed_class: no position embeddings for the prefix, only for the patches.
      pos_embed: "learn", "sincos" for MAE's fixed table, or "none".
      fc_norm: whether the pooled features are normalised instead of all tokens; None decides by `global_pool`.
      act_layer: activation of the MLPs of blocks and attention pooling, "gelu", "gelu_tanh", "quick_gelu" or "silu";
        None is that of the style.
      pre_norm, final_norm, qk_norm: whether tokens are normalised before the first block, and after the last or the
        pooling, and queries and keys in each head; None is that of the style.
      qkv_bias: see `nn.attention.Attention`.
      norm_eps: epsilon of the norms.
      init_values: LayerScale's initial value; None leaves it out.
      drop_path_rate: stochastic depth rate of the last block; rates rise linearly from 0 over the depth.
      head_init_scale: scale of the head's initial weights (MAE fine-tunes with 1e-3).
      kernel_init: initialiser of the linear layers.
      dtype: compute dtype; parameters stay float32.
      remat: recompute each block in the backward pass instead of keeping its activations.
    """

    def __init__(
        self,
        *,
        style: str = "vit",
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        act_layer: str | None = None,
        pre_norm: bool | None = None,
        final_norm: bool | None = None,
        qk_norm: bool | None = None,
        qkv_bias: bool | str = True,
        norm_eps: float = 1e-6,
        init_values: float | None = None,
        class_token: bool = True,
        num_cls_tokens: int = 1,
        cls_token_mlp: bool = False,
        dist_token: bool = False,
        reg_tokens: int = 0,
        no_embed_class: bool = False,
        pos_embed: str = "learn",
        fc_norm: bool | None = None,
        drop_path_rate: float = 0.0,
        head_init_scale: float = 1.0,
        kernel_init=normal_02,
        patch_kernel_init=None,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        super().__init__()
        if style not in STYLES:
            raise unknown("style of a vision transformer", style, STYLES)
        if global_pool not in POOLINGS:
            raise unknown("global_pool", global_pool, POOLINGS)
        if pos_embed not in POSITIONS:
            raise unknown("pos_embed", pos_embed, POSITIONS)
        if global_pool == "token" and not class_token and num_classes:
            raise UserError("global_pool='token' needs class_token=True: use global_pool='avg' without a CLS token.")
        self.style = STYLES[style] if act_layer is None else STYLES[style].with_activation(act_layer)
        self.style = self.style.with_norms(pre_norm, final_norm, qk_norm)
        if self.style.block.relative_bias and (dist_token or reg_tokens or not class_token or num_cls_tokens > 1):
            raise UserError(
                f"style={style!r} has relative positions for one CLS token and patches only: leave out other tokens."
            )
        registers = getattr(self.style.block.rotary, "registers", None)
        if registers is not None and (dist_token or num_cls_tokens > 1 or (reg_tokens and not class_token)):
            raise UserError(
                f"style={style!r} has places for registers after one CLS token: set class_token=True, num_cls_tokens=1 "
                "and dist_token=False."
            )
        if num_cls_tokens < 1:
            raise UserError(f"num_cls_tokens={num_cls_tokens} is below 1: use class_token=False to have none.")
        if num_cls_tokens > 1 and (dist_token or not class_token):
            raise UserError(
                f"num_cls_tokens={num_cls_tokens} needs class_token=True and no dist_token: leave one of them out."
            )
        norm = lambda: make_norm(self.style.block.norm, embed_dim, norm_eps)
        self.patch_embed = PatchEmbed(
            img_size,
            patch_size,
            in_chans,
            embed_dim,
            use_bias=not self.style.pre_norm,
            norm=norm() if self.style.embed_norm else None,
            cut=self.style.cut,
            kernel_init=patch_kernel_init,
            dtype=dtype,
            rngs=rngs,
        )
        self.grid = self.patch_embed.grid
        self.num_patches = self.grid[0] * self.grid[1]
        self.embed_dim, self.num_heads, self.depth = embed_dim, num_heads, depth
        self.num_classes, self.global_pool, self.no_embed_class = num_classes, global_pool, no_embed_class
        self.num_cls_tokens = num_cls_tokens if class_token else 0
        self.num_prefix_tokens = self.num_cls_tokens + int(dist_token) + reg_tokens
        self.dtype, self.remat = dtype, remat

        def token(count: int):
            return nnx.data(nnx.Param(normal_02(rngs.params(), (1, count, embed_dim))) if count else None)

        self.cls_token, self.dist_token = token(self.num_cls_tokens), token(int(dist_token))
        self.reg_token = token(reg_tokens)
        if cls_token_mlp and not class_token:
            raise UserError("cls_token_mlp=True needs class_token=True: leave one of them out.")
        hidden = int(embed_dim * mlp_ratio)
        self.cls_token_mlp: Any = nnx.data(None)
        if cls_token_mlp:
            self.cls_token_mlp = Mlp(embed_dim, hidden, kernel_init=kernel_init, dtype=dtype, rngs=rngs)
        embedded_prefix = 0 if no_embed_class else self.num_prefix_tokens
        self.pos_embed: Any = nnx.data(None)
        if pos_embed == "learn":
            self.pos_embed = nnx.Param(normal_02(rngs.params(), (1, self.num_patches + embedded_prefix, embed_dim)))
        elif pos_embed == "sincos":
            self.pos_embed = Computed(jnp.asarray(sincos_2d(embed_dim, self.grid, embedded_prefix))[None])
        self.norm_pre = nnx.data(norm() if self.style.pre_norm else None)

        self.blocks = nnx.List(
            [
                Block(
                    embed_dim,
                    num_heads,
                    mlp_ratio=mlp_ratio,
                    qkv_bias=qkv_bias,
                    norm_eps=norm_eps,
                    init_values=init_values,
                    drop_path=rate,
                    num_prefix_tokens=self.num_prefix_tokens,
                    num_cls_tokens=self.num_cls_tokens,
                    style=self.style.block,
                    grid=self.grid,
                    kernel_init=kernel_init,
                    dtype=dtype,
                    rngs=rngs,
                )
                for rate in np.linspace(0, drop_path_rate, depth).tolist()
            ]
        )
        if self.style.shared_bias:
            # One parameter shared by all blocks; files have it under the first block's name.
            for block in list(self.blocks)[1:]:
                block.attn.relative_position_bias_table = self.blocks[0].attn.relative_position_bias_table
        use_fc_norm = global_pool == "avg" if fc_norm is None else fc_norm
        self.norm = nnx.data(norm() if self.style.final_norm and not use_fc_norm else None)
        pooled_norm = norm() if not self.style.plain_fc_norm else LayerNorm(embed_dim, eps=norm_eps, affine=False)
        self.fc_norm = nnx.data(pooled_norm if self.style.final_norm and use_fc_norm else None)
        self.attn_pool = nnx.data(None)
        if global_pool == "map":
            self.attn_pool = AttentionPool(
                embed_dim,
                self.style.pool_heads or num_heads,
                mlp_ratio=mlp_ratio if self.style.pool_heads is None else 4.0,
                norm=self.style.block.norm,
                norm_eps=norm_eps,
                activation=self.style.block.activation,
                kernel_init=kernel_init,
                dtype=dtype,
                rngs=rngs,
            )

        def head():
            init: Any = lambda key, shape, dtype=jnp.float32: head_init_scale * normal_02(key, shape, dtype)
            return nnx.data(Linear(embed_dim, num_classes, kernel_init=init, rngs=rngs) if num_classes else None)

        self.head = head()
        self.head_dist = head() if dist_token else nnx.data(None)

    @property
    def position_rule(self) -> Resampling:
        """How learned positions are resampled to another grid: as in the family."""
        style = self.style
        return Resampling(style.interpolation, style.antialias, style.keeps_aspect, style.align_corners)

    def embed(
        self, images: Float[Array, "b *sides c"], ids_keep: Int[Array, "b k"] | None = None
    ) -> Float[Array, "b n d"]:
        """Embeds patches (all, or `ids_keep` in that order), adds positions and prepends the prefix tokens."""
        require_float(images, 2 + len(self.grid))
        return self.place(self.patch_embed(images.astype(self.dtype or images.dtype), ids_keep), ids_keep)

    def place(self, x: Float[Array, "b k d"], ids_keep: Int[Array, "b k"] | None = None) -> Float[Array, "b n d"]:
        """Makes tokens of embedded patches (all, or `ids_keep` in that order): adds positions, prepends the prefix."""
        prefix = [t[...].astype(x.dtype) for t in (self.cls_token, self.dist_token, self.reg_token) if t is not None]
        if self.cls_token_mlp is not None:
            prefix[0] = self.cls_token_mlp(prefix[0])
        front = jnp.concatenate(prefix, axis=1) if prefix else None
        if self.pos_embed is not None:
            positions = self.pos_embed[...].astype(x.dtype)
            split = positions.shape[1] - self.num_patches
            patch_positions = positions[:, split:]
            x = x + (patch_positions if ids_keep is None else patch_positions[0][ids_keep])
            front = front + positions[:, :split] if front is not None and split else front
        if front is not None:
            x = jnp.concatenate([jnp.broadcast_to(front, (x.shape[0], *front.shape[1:])), x], axis=1)
        return x if self.norm_pre is None else self.norm_pre(x)

    def tokens(self, x: Float[Array, "b n d"], ids_keep: Int[Array, "b k"] | None = None) -> Tokens:
        """Wraps embedded tokens, of all patches or of `ids_keep`."""
        position = jnp.asarray(coordinates(self.grid))
        return all_present(x, self.num_prefix_tokens, position[None] if ids_keep is None else position[ids_keep])

    def encode(
        self,
        x: Float[Array, "b n d"],
        ids_keep: Int[Array, "b k"] | None = None,
        *,
        selection: Any = None,
        taps: Mapping[int, frozenset[str]] | None = None,
        stop: int | None = None,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> BlockRunner:
        """Runs the blocks over embedded tokens; the final norm is not applied (`final_norm`).

        Args:
          ids_keep: the patches in `x`, if not all.
          selection: the report of the reducer that dropped the other patches.
          taps: {layer: fields of `Attended` to report}.
          stop: number of blocks to run; all by default.
        """
        runner = BlockRunner(
            self.tokens(x, ids_keep),
            self.num_prefix_tokens,
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

    def run_blocks(
        self,
        images: Float[Array, "b *sides c"],
        *,
        taps: Mapping[int, frozenset[str]] | None = None,
        stop: int | None = None,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> BlockRunner:
        """Embeds images, without the patches that a plan's scorer drops, and runs the first `stop` blocks."""
        x, ids_keep, selection = self.embed_kept(images, key)
        return self.encode(x, ids_keep, selection=selection, taps=taps, stop=stop, train=train, key=key)

    def sites(self, img_size: int | Sequence[int] | None = None) -> tuple[Site, ...]:
        """The blocks, all of one shape."""
        grid = self.grid if img_size is None else grid_of(img_size, self.patch_embed.patch_size, cut=self.style.cut)
        return tuple(
            Site(layer, f"blocks.{layer}", grid, self.num_prefix_tokens, self.embed_dim, self.num_heads)
            for layer in range(self.depth)
        )

    def overhead(self, img_size: int | Sequence[int] | None = None) -> Overhead:
        """The cost of embedding one patch and of the classifier."""
        heads = sum(linear_flops(head, 1) for head in (self.head, self.head_dist) if head is not None)
        pooling, per_token = (0, 0) if self.attn_pool is None else self.attn_pool.flops()
        mlp = self.cls_token_mlp
        of_token = 0 if mlp is None else linear_flops(mlp.fc1, 1) + linear_flops(mlp.fc2, 1)
        return Overhead(linear_flops(self.patch_embed.proj, 1), heads + pooling, of_token, pool=per_token)

    def parameter_layers(self, names: Iterable[str]) -> dict[str, int]:
        """See `Host.parameter_layers`.

        As published, a CLS token with an MLP learns at the full rate, like its MLP, and so do relative positions that
        all blocks share (BEiT, SimMIM).
        """
        layers = super().parameter_layers(names)
        full = ("cls_token",) if self.cls_token_mlp is not None else ()
        if self.style.shared_bias:
            full = (*full, "blocks.0.attn.relative_position_bias_table")
        return {name: self.depth + 1 if name in full else layer for name, layer in layers.items()}

    def final_norm(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        """Applies the norm after the last block; the identity for networks with `fc_norm`."""
        return x if self.norm is None else self.norm(x)

    def forward_head(self, tokens: Tokens) -> tuple[Float[Array, "b k"], tuple[Array, ...]]:
        """Maps tokens to logits in float32, and to the logits of both heads of a distilled model."""
        pooled = self.pool(tokens).astype(jnp.float32)
        if self.head is None:
            return pooled, ()
        logits = self.head(pooled)
        if self.head_dist is None:
            return logits, ()
        distilled = self.head_dist(tokens.x[:, self.num_cls_tokens].astype(jnp.float32))
        return (logits + distilled) / 2, (logits, distilled)

    def pool(self, tokens: Tokens) -> Float[Array, "b d"]:
        """Pools tokens: the CLS token, or patch tokens weighted by the number of patches each represents.

        A distilled network without classes pools the mean of its CLS and distillation tokens, as in timm, and one with
        several CLS tokens their mean. Without a CLS token, patch tokens are pooled in any case.
        """
        first = 0 if self.attn_pool is not None and self.style.map_prefix else self.num_prefix_tokens
        x, size = tokens.x[:, first:], jnp.where(tokens.policy > 0, tokens.size, 0)[:, first:]
        if self.global_pool == "token" and self.num_cls_tokens:
            distilled = self.head is None and self.cls_token is not None and self.dist_token is not None
            pooled = (tokens.x[:, 0] + tokens.x[:, 1]) / 2 if distilled else mean_cls(tokens.x, self.num_cls_tokens)
        elif self.attn_pool is not None:
            pooled = self.attn_pool(x, size)
        else:
            counts = size[:, :, None]
            pooled = ((x.astype(jnp.float32) * counts).sum(1) / counts.sum(1)).astype(x.dtype)
        return pooled if self.fc_norm is None else self.fc_norm(pooled)


def mean_cls(x: Float[Array, "b n d"], num_cls_tokens: int) -> Float[Array, "b d"]:
    """The CLS token of each image, or the mean of several; they are the first tokens."""
    return x[:, 0] if num_cls_tokens == 1 else x[:, :num_cls_tokens].astype(jnp.float32).mean(1).astype(x.dtype)


NETWORK = VisionTransformer

__all__ = ["NETWORK", "VisionTransformer", "mean_cls", "preprocessing", "variants"]
