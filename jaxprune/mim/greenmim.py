"""GreenMIM (Huang et al., 2022): a Swin on the visible tokens only, and MAE's decoder on its last map.

The unit of masking, decoding and prediction is a cell of the last map: 32×32 pixels for a Swin with four stages.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import unknown
from jaxprune.mim.mae import MAE, RULES, MaeFlops
from jaxprune.mim.parts.base import Framework
from jaxprune.mim.parts.decoder import TokenDecoder
from jaxprune.mim.parts.masker import Masks, RandomMasker, SharedMasker
from jaxprune.mim.parts.partial_reconstruction import FULL, Partial
from jaxprune.mim.parts.swin_shapes import architecture
from jaxprune.mim.parts.target import NormalizedPixels, Pixels
from jaxprune.mim.parts.visible_swin import (
    WITHOUT_HEAD,
    cell_of,
    ids_in_order,
    stages,
    visible_features,
    visible_flops,
)
from jaxprune.models.swin import SwinTransformer
from jaxprune.nn.linear import xavier_uniform
from jaxprune.nn.patch_embed import grid_of
from jaxprune.nn.tensor_rules import Rule
from jaxprune.ops.patches import gather_tokens

RESTORE = ("published", "exact")


class GreenMIM(Framework):
    """A masked autoencoder with a Swin encoder that does not process masked tokens.

    Args:
      depths, num_heads: number of blocks and of heads of the encoder, by stage.
      mlp_ratio: MLP ratio of encoder and decoder, which also share `norm_eps`.
      decoder_embed_dim, decoder_depth, decoder_num_heads: see `TokenDecoder`.
      mask_ratio: see `RandomMasker`, for cells.
      shared_mask: whether the images of a batch share one mask, as published; False draws one for each, which makes the
        encoder's position biases more expensive.
      restore: where the decoder puts the latents of visible cells: "exact" puts each in its own cell. The "published"
        code has latents in grid order but restores them as if they were in noise order.
      norm_pix_loss: targets are pixels normalised per cell.
      partial: see `Partial`, for cells; "full" reconstruction is GreenMIM, the others throw 0.5 by default.
      encoder: further arguments of the Swin.

    Raises:
      UserError: the ratios leave nothing to see, to decode or to throw, or the image is not a whole number of cells.
    """

    encoder_class = SwinTransformer
    encoder_excludes = WITHOUT_HEAD
    no_decay = ("decoder.mask_token", "*relative_position_bias_table")
    non_encoder_patterns = MAE.non_encoder_patterns
    published_encoder = "encoder."
    weight_source = ("merging_last",)

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 4,
        in_chans: int = 3,
        embed_dim: int = 128,
        depths: Sequence[int] = (2, 2, 18, 2),
        num_heads: int | Sequence[int] = (4, 8, 16, 32),
        window_size: int | tuple[int, int] = 7,
        mlp_ratio: float = 4.0,
        norm_eps: float = 1e-6,
        decoder_embed_dim: int = 512,
        decoder_depth: int = 1,
        decoder_num_heads: int = 16,
        mask_ratio: float = 0.75,
        shared_mask: bool = True,
        restore: str = "published",
        norm_pix_loss: bool = True,
        partial: Partial = FULL,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
        **encoder: Any,
    ):
        if restore not in RESTORE:
            raise unknown("restore", restore, RESTORE)
        cell = cell_of(img_size, patch_size, len(depths))
        common = {"mlp_ratio": mlp_ratio, "dtype": dtype, "remat": remat, "rngs": rngs}
        swin = SwinTransformer(
            img_size=img_size,
            patch_size=patch_size,
            in_chans=in_chans,
            num_classes=0,
            embed_dim=embed_dim,
            depths=tuple(depths),
            num_heads=num_heads,
            window_size=window_size,
            norm_eps=norm_eps,
            kernel_init=xavier_uniform,
            patch_kernel_init=xavier_uniform,
            **common,
            **encoder,
        )
        grid = grid_of(img_size, cell)
        target = (NormalizedPixels if norm_pix_loss else Pixels)(cell, in_chans)
        masker = (SharedMasker if shared_mask else RandomMasker)(grid, float(mask_ratio), **partial.throwing())
        decoder = TokenDecoder(
            swin.widths[-1],
            target.size,
            grid=grid,
            num_prefix_tokens=0,
            dim=decoder_embed_dim,
            depth=decoder_depth,
            num_heads=decoder_num_heads,
            norm_eps=norm_eps,
            partial=partial,
            **common,
        )
        super().__init__(encoder=swin, masker=masker, decoder=decoder, target=target)
        self.restore = restore

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a cell in pixels."""
        return self.target.patch_size

    def encode(self, images: Float[Array, "b H W c"], masks: Masks) -> Float[Array, "b k d"]:
        """The last stage's output for the visible cells, in the order that the decoder expects, see `restore`.

        Where the masks are shared by all images and are not an argument of the traced program, windows are grouped by
        them.
        """
        features = visible_features(self.encoder, images, ids_in_order(masks))
        return features if self.restore == "published" else gather_tokens(features, _ranks(masks.ids_keep))

    def __call__(
        self, images: Float[Array, "b H W c"], *, key: PRNGKeyArray | None = None, **draws: Any
    ) -> tuple[Float[Array, ""], Any]:
        """Returns the loss and the other outputs, see `Framework`; `latent` is in grid order, as published."""
        loss, aux = super().__call__(images, key=key, **draws)
        if self.restore == "published":
            return loss, aux
        return loss, aux._replace(latent=gather_tokens(aux.latent, jnp.argsort(aux.masks.ids_keep, axis=1)))

    def flops(self, *, as_published: bool = True) -> MaeFlops:
        """Multiply-accumulates of one image by part; see `Framework.flops`.

        As published, all patches are embedded, and attention is grouped as `visible_flops` says.
        """
        swin, masker = self.encoder, self.masker
        tokens = masker.num_visible * stages(swin)[0].tokens
        shared = isinstance(masker, SharedMasker)
        encoder = visible_flops(swin, masker.num_visible, shared=shared, as_published=as_published)
        embedded = math.prod(swin.grid) if as_published else tokens
        present = masker.num_visible + masker.num_retained
        decoder = self.decoder.flops(masker.num_visible, present, as_published=as_published)
        return MaeFlops(swin.overhead().embed * embedded, encoder, *decoder)

    def summary(self) -> str:
        """A sentence for the report on what the framework does."""
        return (
            f"GreenMIM with {self.reconstruction} reconstruction: {self.masker.mask_ratio:.0%} of the cells of "
            f"{self.patch_size[0]}x{self.patch_size[1]} pixels are masked, {self.masker.throw_ratio:.0%} never enter "
            "the decoder."
        )

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """The tensor names of GreenMIM's repository, which are MAE's except for the encoder."""
        return RULES

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
        """Infers the arguments, including the encoder's, from tensors under the names of GreenMIM's repository."""
        decoder, positions = MAE.recognise(shapes), shapes.get("decoder_pos_embed", ())
        swin = architecture(shapes, positions[1]) if len(positions) == 3 else None
        return None if decoder is None or swin is None else decoder | swin


def _ranks(ids: Int[Array, "b k"]) -> Int[Array, "b k"]:
    """The rank of each number in the ascending order of its row."""
    return jnp.argsort(jnp.argsort(ids, axis=1), axis=1)
