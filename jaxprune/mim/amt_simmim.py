"""AMT on SimMIM (Gui et al., 2022): blocks are masked and thrown by the encoder's attention; and PR-MIM on it.

It is SimMIM during a warm-up. Then blocks are drawn by attention, see `attention_masking`: those drawn first become
mask tokens, the next are dropped from the encoder's input, and the rest are visible.

AMT's repository masks 22 of 49 blocks and throws 13 (ratios of 0.44 and 0.26, rounded up), also during the warm-up, and
has a ViT with absolute instead of relative positions. PR-MIM's Tab. 6 throws 0.24, which is 12 blocks and the default
here. The repository's loss compares maps of different sizes, so SimMIM's is used: the mean absolute error over the
pixels of the masked blocks.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.mim.parts.attention_masking import AttentionMaskedOutput, AttentionMasking
from jaxprune.mim.parts.block_masker import BlockMasker
from jaxprune.mim.parts.masker import Masks
from jaxprune.mim.parts.partial_reconstruction import Partial
from jaxprune.mim.parts.weighted_masker import WeightedMasker
from jaxprune.mim.simmim import SimMIM
from jaxprune.models.vit import VisionTransformer
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.images import require_float

_PUBLISHED = Partial("partial")


class _AmtSimmimOutput(NamedTuple):
    pred: Float[Array, "b p q"]
    latent: Float[Array, "b n d"]
    masks: Masks
    masked_grid: Bool[Array, "b h w"]
    z: Float[Array, "b h w d"]
    rec: Float[Array, "b H W c"]
    token_weights: Float[Array, "b p"] | None = None


class AmtSimmimOutput(_AmtSimmimOutput, AttentionMaskedOutput):
    """The outputs of AMT on SimMIM besides its loss: those of `SimmimOutput`, and the weights that masks were drawn by.

    Attributes:
      masked_grid: True where a patch is masked or thrown.
      token_weights: weights of the patches; None if masks were drawn without weights.
    """

    __slots__ = ()


class AmtSimmimFlops(NamedTuple):
    """The cost of AMT on SimMIM by part; `observe` is that of the weights."""

    patch_embed: int
    encoder: int
    aggregate: int
    predict: int
    observe: int

    total = property(sum)  # of all parts


class AmtSimMIM(AttentionMasking, SimMIM):
    """SimMIM on a ViT that masks the patches it attends to, and throws others.

    >>> from flax import nnx
    >>> from jaxprune import mim
    >>> sizes = dict(img_size=56, patch_size=4, embed_dim=16, depth=1, num_heads=2, mask_patch=8)
    >>> masker = mim.create("amt_simmim", **sizes, rngs=nnx.Rngs(0)).masker
    >>> masker.num_retained, masker.num_masked - masker.num_retained, masker.num_visible
    (88, 48, 60)

    Args:
      mask_patch: side of a block in pixels, or (height, width); for its default see `SimMIM`.
      mask_ratio: fraction of the blocks that become mask tokens and are predicted, rounded up.
      amt_throw_ratio: fraction of the blocks that never enter the encoder, rounded up.
      partial: see `Partial`; "partial" reconstruction, the default, is AMT; "full" is SimMIM at the same visible
        patches; "progressive" is PR-MIM, on the encoder's map. Its `throw_ratio` is the fraction of the blocks, among
        those that are not visible, that are thrown, rounded up; None uses `amt_throw_ratio`. The blocks drawn last are
        thrown; `retain` has no effect.
      warmup_epochs: epochs of plain SimMIM.
      warmup_mask_ratio: mask ratio of the warm-up; None uses `mask_ratio`, as published.
      refresh_epochs: epochs between refreshes of the copy of the encoder that weights patches.
      simmim: further arguments of SimMIM, such as `rel_pos="none"` and `pos_embed="learn"`, as published.

    Raises:
      UserError: the ratios leave nothing to see, to reconstruct or to throw.
    """

    encoder_classes: ClassVar = {"vit": VisionTransformer}

    def __init__(
        self,
        *,
        mask_ratio: float = 0.44,
        amt_throw_ratio: float = 0.24,
        partial: Partial = _PUBLISHED,
        warmup_epochs: int = 40,
        warmup_mask_ratio: float | None = None,
        refresh_epochs: int = 40,
        rngs: nnx.Rngs,
        **simmim: Any,
    ):
        super().__init__(
            mask_ratio=mask_ratio if warmup_mask_ratio is None else warmup_mask_ratio,
            partial=dataclasses.replace(partial, throw_ratio=0.0),
            rngs=rngs,
            **simmim,
        )
        self.mask_ratio, self.amt_throw_ratio = float(mask_ratio), float(amt_throw_ratio)
        masker = _masker(self.masker, self.mask_ratio, self.amt_throw_ratio, partial)
        self.drive(masker, warmup_epochs, refresh_epochs)

    def __call__(
        self,
        images: Float[Array, "b H W c"],
        *,
        key: PRNGKeyArray | None = None,
        drop_key: PRNGKeyArray | None = None,
        **draws: Any,
    ) -> tuple[Float[Array, ""], AmtSimmimOutput]:
        """Returns the loss of a batch of normalised images, and the other outputs.

        Args:
          key: draws the random numbers that are not in `draws`.
          drop_key: turns DropPath on.
          draws: see `AttentionMasking.draw_by_attention`.

        Raises:
          UserError: the images are not a batch of floating-point arrays.
        """
        require_float(images, 4)
        masks, weights = self.draw_by_attention(images, key=key, **draws)
        loss, aux = self.reconstruct(images, masks, drop_key=drop_key)
        return loss, AmtSimmimOutput(*aux, token_weights=weights)

    def flops(self, *, as_published: bool = True) -> AmtSimmimFlops:
        """Multiply-accumulates of one image by part; see `Framework.flops`.

        As published, all patches are embedded, only retained ones are predicted where nothing is rebuilt, and the
        weights of patches are stored instead of being computed in each step.
        """
        masker, parts = self.masker, super().flops(as_published=as_published)
        if not as_published:
            return AmtSimmimFlops(*parts, observe=self.observe_flops())
        cells = masker.num_visible + masker.num_retained if self.reconstruction == "partial" else self.num_patches
        return AmtSimmimFlops(
            self.encoder.overhead().embed * self.num_patches,
            parts.encoder,
            parts.aggregate,
            linear_flops(self.decoder.pred, cells),
            observe=0,
        )

    def summary(self) -> str:
        """A sentence for the report on what the framework does."""
        masker, patches = self.masker, self.num_patches
        return (
            f"AMT on SimMIM with {self.reconstruction} reconstruction: by the attention of its encoder, blocks of "
            f"{masker.num_masked / patches:.0%} of the patches are masked, and "
            f"{(masker.num_masked - masker.num_retained) / patches:.0%} never enter it; the first {self.warmup_epochs} "
            "epochs are plain SimMIM."
        )

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Returns None: the tensors are SimMIM's."""


def _masker(base: BlockMasker, mask_ratio: float, amt_throw_ratio: float, partial: Partial) -> WeightedMasker:
    blocks, block_size = math.prod(base.blocks), math.prod(base.block)
    masked, thrown = (math.ceil(blocks * ratio) for ratio in (mask_ratio, amt_throw_ratio))
    if not (0 < mask_ratio < 1 and amt_throw_ratio >= 0 and masked + thrown < blocks):
        raise UserError(
            f"mask_ratio {mask_ratio} and amt_throw_ratio {amt_throw_ratio} are fractions of all {blocks} blocks, "
            "rounded up, and must leave at least one visible: lower one of them."
        )
    unseen = masked + thrown
    if partial.reconstruction == "full":
        thrown = 0
    elif partial.throw_ratio is not None:
        thrown = math.ceil(blocks * partial.throw_ratio)
    if thrown >= unseen:
        raise UserError(
            f"Of the {unseen} blocks that are not visible, throw_ratio {partial.throw_ratio} would throw {thrown} and "
            "leave none to reconstruct: lower it, or raise mask_ratio."
        )
    return WeightedMasker(
        base.grid,
        (blocks - unseen) * block_size,
        (unseen - thrown) * block_size,
        base.block,
        mask_tokens=True,
    )
