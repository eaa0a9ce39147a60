"""LTRP's ranking models: a plain ViT that scores all patches from its CLS token or each from its own, or a ResNet."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.models.resnet import ResNet
from jaxprune.models.vit import VisionTransformer
from jaxprune.nn import Linear, Overhead, Tokens
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.linear import xavier_uniform
from jaxprune.nn.patch_embed import grid_of, pair


class Ranker(VisionTransformer):
    """A ViT with one output per patch, computed from the CLS token (LTRP, A.1).

    It has MAE's initialisation and fixed sine-cosine positions. Called like any ViT it returns the scores of whole
    images, so it can be loaded, saved and reduced like one.

    Args:
      norm_eps: epsilon of the layer norms; the published rankers have PyTorch's 1e-5.
      per_patch: score each patch from its own token, with one output for all, instead of all from the CLS token. Not
        published: a ranker of a few thousand parameters has no room for an output per patch.
      other: as for `VisionTransformer`.
    """

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_chans: int = 3,
        embed_dim: int = 384,
        depth: int = 12,
        num_heads: int = 6,
        mlp_ratio: float = 4.0,
        norm_eps: float = 1e-5,
        per_patch: bool = False,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        self.img_size, self.patch_size = pair(img_size), pair(patch_size)
        grid = grid_of(self.img_size, self.patch_size)
        super().__init__(
            img_size=img_size,
            patch_size=patch_size,
            in_chans=in_chans,
            num_classes=grid[0] * grid[1],
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            mlp_ratio=mlp_ratio,
            norm_eps=norm_eps,
            pos_embed="sincos",
            kernel_init=xavier_uniform,
            patch_kernel_init=xavier_uniform,
            dtype=dtype,
            remat=remat,
            rngs=rngs,
        )
        # LTRP's repository initialises every linear layer so, the head too.
        self.per_patch, outputs = per_patch, 1 if per_patch else self.num_patches
        self.head = nnx.data(Linear(embed_dim, outputs, kernel_init=xavier_uniform, rngs=rngs))

    def overhead(self, img_size: Any = None) -> Overhead:
        """See `Host`; an output per patch costs as much as it is asked for."""
        cost = super().overhead(img_size)
        if not self.per_patch:
            return cost
        return cost._replace(head=linear_flops(self.head, self.num_patches))

    def forward_head(self, tokens: Tokens) -> tuple[Float[Array, "b k"], tuple[Array, ...]]:
        """The scores of all patches, or of those in the tokens, each from its own; -inf if a plan dropped one."""
        if not self.per_patch:
            return super().forward_head(tokens)
        rows = self.head(tokens.x[:, self.num_prefix_tokens :].astype(jnp.float32))[..., 0]
        scores = jnp.take_along_axis(rows, jnp.maximum(tokens.assign, 0), axis=1)
        return jnp.where(tokens.assign < 0, -jnp.inf, scores), ()

    def scores(
        self, images: Float[Array, "b H W c"], ids_keep: Int[Array, "b k"] | None = None, *, train: bool = False
    ) -> Float[Array, "b {self.num_patches}"]:
        """Scores of all patches of normalised images, larger = matters more.

        Args:
          ids_keep: the patches that the ranker sees, as in training (LTRP's sparse design); scores of the others are
            then meaningless.
          train: has no effect: there is neither dropout nor batch norm.
        """
        tokens = self.encode(self.embed(images, ids_keep), ids_keep).tokens
        scores = self.forward_head(tokens._replace(x=self.final_norm(tokens.x)))[0]
        if ids_keep is None or not self.per_patch:
            return scores
        unseen = jnp.full((len(scores), self.num_patches), -jnp.inf)
        return jnp.put_along_axis(unseen, ids_keep, scores, axis=1, inplace=False)


class ConvRanker(ResNet):
    """A ResNet with one output per patch of an image, as in LTRP's code; it needs whole images.

    Args:
      img_size, patch_size: define the patches to rank; the network itself takes any size.
      other: as for `ResNet`.
    """

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        bottleneck: bool = False,
        layers: tuple[int, ...] = (2, 2, 2, 2),
        width: int = 64,
        in_chans: int = 3,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        self.img_size, self.patch_size = pair(img_size), pair(patch_size)
        self.grid = grid_of(self.img_size, self.patch_size)
        self.num_patches = self.grid[0] * self.grid[1]
        super().__init__(
            num_classes=self.num_patches,
            bottleneck=bottleneck,
            layers=layers,
            width=width,
            in_chans=in_chans,
            dtype=dtype,
            rngs=rngs,
        )

    def scores(
        self, images: Float[Array, "b H W c"], ids_keep: Int[Array, "b k"] | None = None, *, train: bool = False
    ) -> Float[Array, "b {self.num_patches}"]:
        """Scores of all patches of normalised images, larger = matters more.

        Args:
          ids_keep: must be None.
          train: see `ResNet`.

        Raises:
          UserError: `ids_keep` is given.
        """
        if ids_keep is not None:
            raise UserError("A ConvNet needs whole images: train it with sparse=False.")
        return self(images, train=train)[0]
