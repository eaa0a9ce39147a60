"""MAE (He et al., 2022), plain partial reconstruction, and PR-MIM (Li et al., 2024) on top of it."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.mim.parts.base import Framework
from jaxprune.mim.parts.block_masker import block_of
from jaxprune.mim.parts.decoder import TokenDecoder
from jaxprune.mim.parts.masker import RandomMasker
from jaxprune.mim.parts.partial_reconstruction import FULL, Partial
from jaxprune.mim.parts.random_blocks import RandomBlocks
from jaxprune.mim.parts.rebuild_thrown import PUBLISHED, aggregation_of
from jaxprune.mim.parts.target import NormalizedPixels, Pixels
from jaxprune.models.vit import VisionTransformer
from jaxprune.nn.linear import xavier_uniform
from jaxprune.nn.patch_embed import pair
from jaxprune.nn.tensor_rules import Rule, within

# Arguments of a block that encoder and decoder share.
STYLE = ("qkv_bias", "norm_eps", "init_values")


class MaeFlops(NamedTuple):
    """The cost of a masked autoencoder by part."""

    patch_embed: int
    encoder: int
    decoder_embed: int
    decoder: int
    aggregate: int
    predict: int

    total = property(sum)  # of all parts


class MAE(Framework):
    """A masked autoencoder whose decoder may reconstruct only a subset of the masked patches.

    Args:
      mlp_ratio: MLP ratio of encoder and decoder, which also share `qkv_bias`, `norm_eps` and `init_values`.
      decoder_embed_dim, decoder_depth, decoder_num_heads: see `TokenDecoder`.
      mask_ratio: see `RandomMasker`.
      mask_patch: side in pixels, or (height, width), of the blocks of patches that are visible or masked as a whole
        (Pixio), see `RandomBlocks`; None for single patches.
      decoder_pos_embed: positions of the decoder, "sincos" or "learn".
      norm_pix_loss: targets are pixels normalised per patch.
      partial: see `Partial`; "full" reconstruction is MAE, "progressive" is PR-MIM, which throws 0.5 by default.
      encoder: further arguments of the ViT, such as `reg_tokens`, `class_token`, `init_values` or `drop_path_rate`.

    Raises:
      UserError: the ratios leave nothing to see, to decode or to throw.
    """

    encoder_class = VisionTransformer
    # An encoder without a head and with its own initialisation does not use these.
    encoder_excludes = frozenset(
        {
            "num_classes",
            "global_pool",
            "fc_norm",
            "head_init_scale",
            "kernel_init",
            "patch_kernel_init",
        }
    )
    non_encoder_patterns = ("decoder_*", "mask_token", "agg.*", "aggregate.*")

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
        mask_patch: int | tuple[int, int] | None = None,
        decoder_pos_embed: str = "sincos",
        norm_pix_loss: bool = True,
        partial: Partial = FULL,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
        **encoder: Any,
    ):
        common = {"mlp_ratio": mlp_ratio, "dtype": dtype, "remat": remat, "rngs": rngs}
        vit = VisionTransformer(
            img_size=img_size,
            patch_size=patch_size,
            in_chans=in_chans,
            num_classes=0,
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            kernel_init=xavier_uniform,
            patch_kernel_init=xavier_uniform,
            **{"pos_embed": "sincos", **encoder},
            **common,
        )
        target = (NormalizedPixels if norm_pix_loss else Pixels)(vit.patch_embed.patch_size, in_chans)
        masker = RandomMasker(vit.grid, float(mask_ratio), **partial.throwing())
        if mask_patch is not None:
            block = block_of(pair(mask_patch), vit.patch_embed.patch_size)
            masker = RandomBlocks(vit.grid, float(mask_ratio), **partial.throwing(), block=block)
        decoder = TokenDecoder(
            embed_dim,
            target.size,
            grid=vit.grid,
            num_prefix_tokens=vit.num_prefix_tokens,
            dim=decoder_embed_dim,
            depth=decoder_depth,
            num_heads=decoder_num_heads,
            pos_embed=decoder_pos_embed,
            partial=partial,
            **{name: encoder[name] for name in STYLE if name in encoder},
            **common,
        )
        super().__init__(encoder=vit, masker=masker, decoder=decoder, target=target)

    def training_loss(self, images: Float[Array, "b H W c"], key: PRNGKeyArray, **call: Any) -> Float[Array, ""]:
        """The loss of a training step; DropPath is on, if the encoder has it."""
        if not any(block.drop_path.rate for block in self.encoder.blocks):
            return super().training_loss(images, key, **call)
        mask_key, drop_key = jax.random.split(key)
        return self.reconstruct(images, self.draw(images, key=mask_key, **call), drop_key=drop_key)[0]

    def flops(self, *, as_published: bool = True) -> MaeFlops:
        """Multiply-accumulates of one image by part; see `Framework.flops`.

        As published, without aggregation, a prediction is also computed for the CLS row, and discarded.
        """
        costs, masker = super().flops(as_published=as_published), self.masker
        decoder = self.decoder.flops(
            masker.num_visible, masker.num_visible + masker.num_retained, as_published=as_published
        )
        return MaeFlops(costs.patch_embed, costs.encoder, *decoder)

    def summary(self) -> str:
        """A sentence for the report on what the framework does."""
        return (
            f"MAE with {self.reconstruction} reconstruction: {self.masker.mask_ratio:.0%} of the patches are masked, "
            f"{self.masker.throw_ratio:.0%} never enter the decoder."
        )

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """The tensor names of MAE's repository; "agg" for PR-MIM's aggregation, which has no published weights."""
        return RULES

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
        """Infers the arguments of decoder and aggregation from tensors under the names of MAE's repository."""
        if "decoder_embed.weight" not in shapes:
            return None
        blocks = {match[1] for name in shapes if (match := re.match(r"decoder_blocks\.(\d+)\.", name))}
        arguments: dict[str, Any] = {
            "decoder_embed_dim": shapes["decoder_embed.weight"][0],
            "decoder_depth": len(blocks),
            "decoder_num_heads": 1,  # shapes do not depend on the number of heads
        }
        return arguments | aggregation_of(shapes)


# MAE's repository keeps encoder and decoder side by side, the decoder's parts as decoder_embed, decoder_blocks, ….
RULES = (
    *within("", "decoder.", PUBLISHED),
    Rule("mask_token", "decoder.mask_token"),
    *within("decoder_", "decoder."),
)
