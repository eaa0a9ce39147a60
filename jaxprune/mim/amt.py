"""AMT (Gui et al., 2022): MAE that masks and throws patches by its own attention; and PR-MIM on it (Li et al., 2024).

Until an epoch it is MAE. Then each patch is weighed by attention: see `attention_driven`, also for what that costs. For
ViT-B at 224 pixels the weights take 16.5 GFLOPs beside the 5.9 of AMT's own forward pass, nearly as much again as the
17.8 of that with its backward pass. `amt_simmim` is the same on SimMIM.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.mim.attention_driven import AttentionDriven, DrivenOutput
from jaxprune.mim.decoder import default_throw_ratio
from jaxprune.mim.mae import MAE
from jaxprune.mim.masker import Masks
from jaxprune.mim.weighted_masker import WeightedMasker
from jaxprune.nn.images import require_float
from jaxprune.ops.sampling import num_thrown

UNSEEN = 0.85  # the share of patches that AMT masks or throws


class _AmtOutput(NamedTuple):
    pred: Float[Array, "b p q"]
    latent: Float[Array, "b n d"]
    masks: Masks
    token_weights: Float[Array, "b p"] | None = None


class AmtOutput(_AmtOutput, DrivenOutput):
    """What AMT reports besides its loss: what `Reconstruction` has, and by what masks were drawn.

    Attributes:
      token_weights: of the patches; None where masks were drawn without.
    """

    __slots__ = ()


class AmtFlops(NamedTuple):
    """The cost of AMT, part by part; `observe` is that of the weights."""

    patch_embed: int
    encoder: int
    decoder_embed: int
    decoder: int
    aggregate: int
    predict: int
    observe: int

    total = property(sum)  # of all parts


class AMT(AttentionDriven, MAE):
    """A masked autoencoder that masks what it attends to, and throws some of it.

    Args:
      mask_ratio: fraction of the patches that are masked and predicted.
      amt_throw_ratio: fraction of the patches that neither encoder nor decoder sees; None makes it .85 with
        `mask_ratio`, as published (.45 and .40).
      reconstruction: "partial" is AMT; "full" is MAE at the same visible patches, where nothing is thrown;
        "progressive" (PR-MIM) rebuilds the thrown patches from the decoded ones and learns from both.
      throw_ratio: fraction of the patches, of those that are not visible, that never enters the decoder; None is
        `amt_throw_ratio`, and under "full" 0. Those drawn last are thrown: `retain` has no meaning.
      warmup_epochs: how long it is MAE.
      warmup_mask_ratio: of that MAE.
      refresh_epochs: epochs after which the copy of the encoder is refreshed that weighs patches.
      decoder_embed_dim, decoder_depth, decoder_num_heads: see `TokenDecoder`.
      mae: further arguments of MAE.

    Raises:
      UserError: the ratios leave nothing to see, to decode or to throw.
    """

    def __init__(
        self,
        *,
        decoder_embed_dim: int = 512,
        decoder_depth: int = 8,
        decoder_num_heads: int = 16,
        mask_ratio: float = 0.45,
        amt_throw_ratio: float | None = None,
        reconstruction: str = "partial",
        throw_ratio: float | None = None,
        warmup_epochs: int = 40,
        warmup_mask_ratio: float = 0.75,
        refresh_epochs: int = 40,
        rngs: nnx.Rngs,
        **mae: Any,
    ):
        default_throw_ratio(reconstruction, throw_ratio)
        super().__init__(
            decoder_embed_dim=decoder_embed_dim,
            decoder_depth=decoder_depth,
            decoder_num_heads=decoder_num_heads,
            mask_ratio=warmup_mask_ratio,
            reconstruction=reconstruction,
            throw_ratio=0.0,
            rngs=rngs,
            **mae,
        )
        self.mask_ratio = float(mask_ratio)
        self.amt_throw_ratio = max(round(UNSEEN - mask_ratio, 9), 0.0) if amt_throw_ratio is None else amt_throw_ratio
        masker = _masker(self.grid, self.mask_ratio, self.amt_throw_ratio, reconstruction, throw_ratio)
        self.drive(masker, warmup_epochs, refresh_epochs)

    def __call__(
        self, images: Float[Array, "b H W c"], *, key: PRNGKeyArray | None = None, **drawn: Any
    ) -> tuple[Float[Array, ""], AmtOutput]:
        """Returns the loss of a batch of normalised images, and what led to it.

        Args:
          key: draws what is random and not in `drawn`.
          drawn: see `AttentionDriven.draw_by_attention`.

        Raises:
          UserError: the images are no batch of an array of floating-point numbers.
        """
        require_float(images, 4)
        masks, weights = self.draw_by_attention(images, key=key, **drawn)
        loss, aux = self.reconstruct(images, masks)
        return loss, AmtOutput(*aux, token_weights=weights)

    def flops(self, *, as_published: bool = True) -> AmtFlops:
        """Multiply-accumulates of one image, part by part; see `Framework.flops`.

        As published, the weights of patches are stored, and a step does not compute them.
        """
        whole = super().flops(as_published=as_published)
        return AmtFlops(*whole, observe=0 if as_published else self.observe_flops())

    def summary(self) -> str:
        """What the framework does, as a sentence for the report."""
        masker, patches = self.masker, self.num_patches
        return (
            f"AMT with {self.reconstruction} reconstruction: by the attention of its encoder, "
            f"{masker.num_masked / patches:.0%} of the patches are masked, and "
            f"{(masker.num_masked - masker.num_retained) / patches:.0%} never enter the decoder; for "
            f"{self.warmup_epochs} epochs it is MAE."
        )

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """None: its tensors are MAE's."""


def _masker(
    grid: tuple[int, int], mask_ratio: float, amt_throw_ratio: float, reconstruction: str, throw_ratio: float | None
) -> WeightedMasker:
    patches = grid[0] * grid[1]
    if not (0 < mask_ratio < 1 and amt_throw_ratio >= 0 and int(patches * (mask_ratio + amt_throw_ratio)) < patches):
        raise UserError(
            f"mask_ratio {mask_ratio} and amt_throw_ratio {amt_throw_ratio} are fractions of all {patches} patches, "
            "and have to leave at least one visible: lower one of them."
        )
    unseen = int(patches * (mask_ratio + amt_throw_ratio))
    if reconstruction == "full":
        retained = unseen
    elif throw_ratio is None or throw_ratio == amt_throw_ratio:
        retained = int(patches * mask_ratio)
    else:
        retained = unseen - num_thrown(patches, throw_ratio)
    if retained < 1:
        raise UserError(
            f"Of the {unseen} patches that are not visible none would be decoded at mask_ratio {mask_ratio} and "
            f"throw_ratio {throw_ratio}: raise mask_ratio, or throw less than both ratios make together."
        )
    return WeightedMasker(grid, patches - unseen, retained)
