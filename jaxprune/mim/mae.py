"""MAE (He et al., 2022), plain partial reconstruction, and PR-MIM (Li et al., 2024) on top of it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxprune import losses
from jaxprune.errors import UserError, unknown
from jaxprune.mim.aggregation import create_aggregation, fill_grid
from jaxprune.mim.base import Framework
from jaxprune.models.vit import VisionTransformer
from jaxprune.nn import Block, LayerNorm, Linear
from jaxprune.nn.block import run_block
from jaxprune.nn.linear import normal_02, xavier_uniform
from jaxprune.nn.params import Fixed
from jaxprune.nn.tokens import all_present
from jaxprune.ops.patches import gather_tokens, normalize_patches, patchify
from jaxprune.ops.posembed import sincos_2d
from jaxprune.ops.sampling import furthest_retained, num_thrown, num_visible, random_masking, random_retained

RECONSTRUCTIONS = ("full", "partial", "progressive")
RETAIN = ("furthest", "random")


class Reconstruction(NamedTuple):
    """What a pre-training step reports besides its loss.

    Attributes:
      pred: predicted pixels of every patch in `patchify`'s order (normalised ones under norm_pix_loss); zeros where
        plain partial reconstruction predicts nothing.
      masked: True where the encoder did not see the patch.
      retained: masked patches that the decoder reconstructs.
      thrown: masked patches that never enter the decoder.
      latent: the encoder's output, CLS first, visible patches in the order of their noise.
      ids_restore: each patch's place in that order over all patches.
    """

    pred: Float[Array, "b p q"]
    masked: Bool[Array, "b p"]
    retained: Bool[Array, "b p"]
    thrown: Bool[Array, "b p"]
    latent: Float[Array, "b k d"]
    ids_restore: Int[Array, "b p"]


class MAE(Framework):
    """A masked autoencoder whose decoder may reconstruct only a part of what was masked.

    Args:
      mask_ratio: fraction of the patches that the encoder does not see.
      norm_pix_loss: targets are pixels normalised per patch.
      reconstruction: "full" is MAE; "partial" decodes some of the masked patches and learns from those only;
        "progressive" (PR-MIM) rebuilds the thrown ones from their decoded neighbours and learns from all.
      throw_ratio: fraction of the patches, below `mask_ratio`, that never enters the decoder; None is 0 for "full"
        and 0.5 otherwise.
      retain: how the decoded patches are chosen: "furthest" sampling (PR-MIM, Alg. 1) or uniformly at "random".
      aggregator: what rebuilds thrown patches: "depthwise" convolution, or of PR-MIM's Tab. 12 "avg_pool", a
        "transformer" block or a "convnext" block.
      kernel_size, aggregation: see `DepthwiseAggregation`.

    Raises:
      UserError: the ratios leave nothing to see, to decode or to throw.
    """

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_chans: int = 3,
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        decoder_embed_dim: int = 512,
        decoder_depth: int = 8,
        decoder_num_heads: int = 16,
        mask_ratio: float = 0.75,
        norm_pix_loss: bool = True,
        reconstruction: str = "full",
        throw_ratio: float | None = None,
        retain: str = "furthest",
        aggregator: str = "depthwise",
        kernel_size: int = 7,
        aggregation: str = "thrown",
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        if reconstruction not in RECONSTRUCTIONS:
            raise unknown("reconstruction", reconstruction, RECONSTRUCTIONS)
        if retain not in RETAIN:
            raise unknown("way to retain tokens", retain, RETAIN)
        if throw_ratio is None:
            throw_ratio = 0.0 if reconstruction == "full" else 0.5
        self.encoder = VisionTransformer(
            img_size=img_size,
            patch_size=patch_size,
            in_chans=in_chans,
            num_classes=0,
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            mlp_ratio=mlp_ratio,
            pos_embed="sincos",
            kernel_init=xavier_uniform,
            patch_kernel_init=xavier_uniform,
            dtype=dtype,
            remat=remat,
            rngs=rngs,
        )
        self.grid, self.num_patches = self.encoder.grid, self.encoder.num_patches
        self.patch_size, self.norm_pix_loss = self.encoder.patch_embed.patch_size, norm_pix_loss
        self.reconstruction, self.retain, self.remat = reconstruction, retain, remat
        self.mask_ratio, self.throw_ratio = float(mask_ratio), float(throw_ratio)
        self.num_visible = num_visible(self.num_patches, mask_ratio)
        self.num_masked = self.num_patches - self.num_visible
        self.num_retained = self.num_masked - self._num_thrown(mask_ratio, throw_ratio)

        common = {"kernel_init": xavier_uniform, "dtype": dtype, "rngs": rngs}
        self.decoder_embed = Linear(embed_dim, decoder_embed_dim, **common)
        self.mask_token = nnx.Param(normal_02(rngs.params(), (1, 1, decoder_embed_dim)))
        self.decoder_pos_embed = Fixed(jnp.asarray(sincos_2d(decoder_embed_dim, self.grid, 1))[None])
        self.decoder_blocks = nnx.List(
            [Block(decoder_embed_dim, decoder_num_heads, mlp_ratio=mlp_ratio, **common) for _ in range(decoder_depth)]
        )
        self.decoder_norm = LayerNorm(decoder_embed_dim)
        height, width = self.patch_size
        self.decoder_pred = Linear(decoder_embed_dim, height * width * in_chans, **common)
        self.aggregate = nnx.data(
            create_aggregation(
                aggregator,
                decoder_embed_dim,
                kernel_size=kernel_size,
                mode=aggregation,
                num_heads=decoder_num_heads,
                mlp_ratio=mlp_ratio,
                dtype=dtype,
                rngs=rngs,
            )
            if reconstruction == "progressive"
            else None
        )

    def _num_thrown(self, mask_ratio: float, throw_ratio: float) -> int:
        if self.reconstruction == "full":
            if throw_ratio:
                raise UserError(
                    f"throw_ratio {throw_ratio} has no meaning with reconstruction='full', which decodes every masked "
                    "patch: use reconstruction='progressive' or 'partial', or throw_ratio=0."
                )
            return 0
        thrown = num_thrown(self.num_patches, throw_ratio)
        if not 0 <= throw_ratio < mask_ratio or thrown >= self.num_masked:
            raise UserError(
                f"throw_ratio {throw_ratio} would throw {thrown} of the {self.num_masked} patches that mask_ratio "
                f"{mask_ratio} masks: it must be below mask_ratio, and leave at least one patch to decode."
            )
        return thrown

    def mask(
        self,
        *,
        batch: int,
        key: PRNGKeyArray | None = None,
        noise: Float[Array, "b p"] | None = None,
        first: Int[Array, "b"] | None = None,
    ) -> tuple[Int[Array, "b k"], Int[Array, "b p"], Bool[Array, "b p"], Bool[Array, "b p"]]:
        """Draws which patches are seen and which of the masked ones are decoded.

        Args:
          batch: number of images.
          key: draws `noise` and `first` where they are not given.
          noise: one number a patch; the least are visible.
          first: where furthest sampling starts, as an index into each image's list of masked patches.

        Returns:
          ids_keep, ids_restore, masked, retained.
        """
        throws = self.num_retained < self.num_masked
        if key is None and (noise is None or (throws and (first is None or self.retain == "random"))):
            raise UserError("Masking is random: give key=, or noise= (and first= where furthest sampling starts).")
        keys: Any = (None, None) if key is None else jax.random.split(key)
        if noise is None:
            noise = jax.random.uniform(keys[0], (batch, self.num_patches))
        ids_keep, ids_restore, masked = random_masking(noise, self.num_visible)
        if self.num_retained == self.num_masked:
            return ids_keep, ids_restore, masked, masked
        if self.retain == "random":
            choice = jax.random.uniform(keys[1], masked.shape)
            retained = jax.vmap(lambda n, m: random_retained(n, m, self.num_retained))(choice, masked)
            return ids_keep, ids_restore, masked, retained
        if first is None:
            first = jax.random.randint(keys[1], (batch,), 0, self.num_masked)
        retained = jax.vmap(lambda m, f: furthest_retained(m, f, self.num_retained, self.grid)[0])(masked, first)
        return ids_keep, ids_restore, masked, retained

    def encode(self, images: Float[Array, "b H W c"], ids_keep: Int[Array, "b k"]) -> Float[Array, "b n d"]:
        """Encodes the visible patches only; CLS first."""
        walk = self.encoder.encode(self.encoder.embed(images, ids_keep), ids_keep)
        return self.encoder.final_norm(walk.tokens.x)

    def decode(
        self,
        latent: Float[Array, "b n d"],
        ids_restore: Int[Array, "b p"],
        masked: Bool[Array, "b p"],
        retained: Bool[Array, "b p"],
    ) -> Float[Array, "b m e"]:
        """Decodes CLS, visible and retained tokens, the latter two in ascending grid order; before the norm."""
        x = self.decoder_embed(latent)
        positions = self.decoder_pos_embed[...][0].astype(x.dtype)
        # Row `num_visible` of the source stands for every masked patch.
        mask_token = jnp.broadcast_to(self.mask_token[...].astype(x.dtype), (x.shape[0], 1, x.shape[2]))
        source = jnp.concatenate([x[:, 1:], mask_token], axis=1)
        rows = jnp.minimum(ids_restore, self.num_visible)
        if self.num_retained == self.num_masked:
            patches = gather_tokens(source, rows) + positions[None, 1:]
        else:
            present = ~masked | retained
            ids = jnp.argsort(~present, axis=1, stable=True)[:, : self.num_visible + self.num_retained]
            patches = gather_tokens(source, jnp.take_along_axis(rows, ids, axis=1)) + positions[1:][ids]
        tokens = all_present(jnp.concatenate([x[:, :1] + positions[None, :1], patches], axis=1), 1)
        for block in self.decoder_blocks:
            tokens, _, _ = run_block(block, tokens, remat=self.remat)
        return tokens.x

    def predict(
        self, decoded: Float[Array, "b m e"], masked: Bool[Array, "b p"], retained: Bool[Array, "b p"]
    ) -> Float[Array, "b p q"]:
        """Decoded tokens to pixels of every patch; thrown patches are rebuilt, or zero under plain reconstruction."""
        x, present = decoded[:, 1:], ~masked | retained
        partial = self.num_retained < self.num_masked
        if self.aggregate is not None:
            grid = fill_grid(x, present) if partial else x
            x = self.aggregate(grid, ~present, self.grid)
        pred = self.decoder_pred(self.decoder_norm(x)).astype(jnp.float32)
        return fill_grid(pred, present) if partial and self.aggregate is None else pred

    def target(self, images: Float[Array, "b H W c"]) -> Float[Array, "b p q"]:
        """The pixels to predict."""
        patches = patchify(images.astype(jnp.float32), self.patch_size)
        return normalize_patches(patches)[0] if self.norm_pix_loss else patches

    def __call__(
        self,
        images: Float[Array, "b H W c"],
        *,
        key: PRNGKeyArray | None = None,
        noise: Float[Array, "b p"] | None = None,
        first: Int[Array, "b"] | None = None,
    ) -> tuple[Float[Array, ""], Reconstruction]:
        """Returns the mean squared error of a batch over the patches that are learned from, and what led to it.

        Those are all masked patches; under plain partial reconstruction only the retained ones.
        """
        batch = images.shape[0]
        ids_keep, ids_restore, masked, retained = self.mask(batch=batch, key=key, noise=noise, first=first)
        latent = self.encode(images, ids_keep)
        pred = self.predict(self.decode(latent, ids_restore, masked, retained), masked, retained)
        learned = retained if self.reconstruction == "partial" else masked
        loss = losses.masked_mse(pred, self.target(images), learned)
        return loss, Reconstruction(pred, masked, retained, masked & ~retained, latent, ids_restore)
