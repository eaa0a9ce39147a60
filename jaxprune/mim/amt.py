"""AMT (Gui et al., 2022): MAE that masks and throws patches by its own attention; and PR-MIM on it (Li et al., 2024).

It is MAE during a warm-up. Then each patch is weighted by attention; see `attention_masking`, also for the cost. For
ViT-B at 224 pixels the weights take 16.5 GFLOPs on top of the 5.9 of AMT's own forward pass, nearly as much as the 17.8
of its forward and backward pass. `amt_simmim` does the same on SimMIM.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.mim.mae import MAE
from jaxprune.mim.parts.attention_masking import AttentionMaskedOutput, AttentionMasking
from jaxprune.mim.parts.masker import Masks
from jaxprune.mim.parts.partial_reconstruction import Partial
from jaxprune.mim.parts.weighted_masker import WeightedMasker
from jaxprune.nn.images import require_float
from jaxprune.ops.patch_sampling import num_thrown

UNSEEN = 0.85  # fraction of patches that AMT masks or throws
_PUBLISHED = Partial("partial")


class _AmtOutput(NamedTuple):
    pred: Float[Array, "b p q"]
    latent: Float[Array, "b n d"]
    masks: Masks
    token_weights: Float[Array, "b p"] | None = None


class AmtOutput(_AmtOutput, AttentionMaskedOutput):
    """The outputs of AMT besides its loss: those of `Reconstruction`, and the weights that masks were drawn by.

    Attributes:
      token_weights: weights of the patches; None if masks were drawn without weights.
    """

    __slots__ = ()


class AmtFlops(NamedTuple):
    """The cost of AMT by part; `observe` is that of the weights."""

    patch_embed: int
    encoder: int
    decoder_embed: int
    decoder: int
    aggregate: int
    predict: int
    observe: int

    total = property(sum)  # of all parts


class AMT(AttentionMasking, MAE):
    """A masked autoencoder that masks the patches it attends to, and throws others.

    Args:
      mask_ratio: fraction of the patches that are masked and predicted.
      amt_throw_ratio: fraction of the patches that neither encoder nor decoder sees; None uses 0.85 - `mask_ratio`, as
        published (0.45 masked, 0.40 thrown).
      partial: see `Partial`; "partial" reconstruction, the default, is AMT; "full" is MAE at the same visible patches;
        "progressive" is PR-MIM. Its `throw_ratio` is the fraction of the patches, among those that are not visible,
        that never enter the decoder; None uses `amt_throw_ratio`. The patches drawn last are thrown; `retain` has no
        effect.
      warmup_epochs: epochs of plain MAE; 41 as published, whose epochs 0 to 40 are MAE.
      warmup_mask_ratio: mask ratio of the warm-up.
      refresh_epochs: epochs between refreshes of the copy of the encoder that weights patches.
      decoder_embed_dim, decoder_depth, decoder_num_heads: see `TokenDecoder`.
      mae: further arguments of `MAE`; `mask_patch` applies to the warm-up.

    Raises:
      UserError: the ratios leave nothing to see, to decode or to throw.
    """

    encoder_excludes = MAE.encoder_excludes | {"drop_path_rate"}

    def __init__(
        self,
        *,
        decoder_embed_dim: int = 512,
        decoder_depth: int = 8,
        decoder_num_heads: int = 16,
        mask_ratio: float = 0.45,
        amt_throw_ratio: float | None = None,
        partial: Partial = _PUBLISHED,
        warmup_epochs: int = 41,
        warmup_mask_ratio: float = 0.75,
        refresh_epochs: int = 40,
        rngs: nnx.Rngs,
        **mae: Any,
    ):
        super().__init__(
            decoder_embed_dim=decoder_embed_dim,
            decoder_depth=decoder_depth,
            decoder_num_heads=decoder_num_heads,
            mask_ratio=warmup_mask_ratio,
            partial=dataclasses.replace(partial, throw_ratio=0.0),
            rngs=rngs,
            **mae,
        )
        self.mask_ratio = float(mask_ratio)
        self.amt_throw_ratio = max(round(UNSEEN - mask_ratio, 9), 0.0) if amt_throw_ratio is None else amt_throw_ratio
        masker = _masker(self.grid, self.mask_ratio, self.amt_throw_ratio, partial)
        self.drive(masker, warmup_epochs, refresh_epochs)

    def __call__(
        self, images: Float[Array, "b H W c"], *, key: PRNGKeyArray | None = None, **draws: Any
    ) -> tuple[Float[Array, ""], AmtOutput]:
        """Returns the loss of a batch of normalised images, and the other outputs.

        Args:
          key: draws the random numbers that are not in `draws`.
          draws: see `AttentionMasking.draw_by_attention`.

        Raises:
          UserError: the images are not a batch of floating-point arrays.
        """
        require_float(images, 4)
        masks, weights = self.draw_by_attention(images, key=key, **draws)
        loss, aux = self.reconstruct(images, masks)
        return loss, AmtOutput(*aux, token_weights=weights)

    def flops(self, *, as_published: bool = True) -> AmtFlops:
        """Multiply-accumulates of one image by part; see `Framework.flops`.

        As published, the weights of patches are stored instead of being computed in each step.
        """
        of_mae = super().flops(as_published=as_published)
        return AmtFlops(*of_mae, observe=0 if as_published else self.observe_flops())

    def summary(self) -> str:
        """A sentence for the report on what the framework does."""
        masker, patches = self.masker, self.num_patches
        return (
            f"AMT with {self.reconstruction} reconstruction: by the attention of its encoder, "
            f"{masker.num_masked / patches:.0%} of the patches are masked, and "
            f"{(masker.num_masked - masker.num_retained) / patches:.0%} never enter the decoder; the first "
            f"{self.warmup_epochs} epochs are plain MAE."
        )

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Returns None: the tensors are MAE's."""


def _masker(grid: tuple[int, int], mask_ratio: float, amt_throw_ratio: float, partial: Partial) -> WeightedMasker:
    patches, throw_ratio = grid[0] * grid[1], partial.throw_ratio
    if not (0 < mask_ratio < 1 and amt_throw_ratio >= 0 and int(patches * (mask_ratio + amt_throw_ratio)) < patches):
        raise UserError(
            f"mask_ratio {mask_ratio} and amt_throw_ratio {amt_throw_ratio} are fractions of all {patches} patches, "
            "and must leave at least one visible: lower one of them."
        )
    unseen = int(patches * (mask_ratio + amt_throw_ratio))
    if partial.reconstruction == "full":
        retained = unseen
    elif throw_ratio is None or throw_ratio == amt_throw_ratio:
        retained = int(patches * mask_ratio)
    else:
        retained = unseen - num_thrown(patches, throw_ratio)
    if retained < 1:
        raise UserError(
            f"None of the {unseen} patches that are not visible would be decoded at mask_ratio {mask_ratio} and "
            f"throw_ratio {throw_ratio}: raise mask_ratio, or lower throw_ratio below mask_ratio + amt_throw_ratio."
        )
    return WeightedMasker(grid, patches - unseen, retained)
