"""CrossMAE: a masked autoencoder that decodes some of the masked patches by cross-attention; and PR-MIM on it."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.mim.mae import MAE
from jaxprune.mim.parts.base import Framework, Picture
from jaxprune.mim.parts.cross_decoder import CrossDecoder
from jaxprune.mim.parts.masker import Masks
from jaxprune.mim.parts.partial_reconstruction import FULL, Partial
from jaxprune.mim.parts.rank_masker import RankMasker
from jaxprune.mim.parts.rebuild_thrown import PUBLISHED, aggregation_of
from jaxprune.mim.parts.target import NormalizedPixels, Pixels
from jaxprune.models.vit import VisionTransformer
from jaxprune.nn import LayerNorm
from jaxprune.nn.linear import xavier_uniform
from jaxprune.nn.params import copied
from jaxprune.nn.tensor_rules import Rule, linear, linear_back, within


class CrossMAE(Framework):
    """A masked autoencoder whose mask tokens attend to the visible patches, and not to each other.

    Each block of the decoder reads its own weighted sum of the encoder's feature maps. As the mask tokens are
    independent, any share of them can be decoded: `kept_mask_ratio`. The encoder has no final norm.

    >>> sizes = dict(img_size=32, patch_size=4, embed_dim=16, depth=1, num_heads=2)
    >>> decoder = dict(decoder_embed_dim=16, decoder_depth=1, decoder_num_heads=2)
    >>> model = CrossMAE(**sizes, **decoder, mask_ratio=0.75, kept_mask_ratio=0.25, rngs=nnx.Rngs(0))
    >>> model.masker.num_visible, model.masker.num_retained, model.reconstruction
    (16, 16, 'partial')

    Args:
      mlp_ratio: MLP ratio of encoder and decoder, which also share `norm_eps`.
      decoder_embed_dim, decoder_depth, decoder_num_heads: see `CrossDecoder`.
      mask_ratio, kept_mask_ratio, retain: see `RankMasker`: the share of the patches that the encoder does not see,
        that of the patches that are masked and decoded, and how these are chosen.
      norm_pix_loss: targets are pixels normalised per patch.
      weight_fm: whether each decoder block weighs the feature maps. False gives all of them the encoder's last output
        after a final norm; no weights of this were published.
      use_input: whether the input of the first encoder block is a feature map too.
      indices: the encoder blocks whose outputs are feature maps, from 0, ascending; by default all. Blocks after the
        last of them are not trained.
      self_attn: whether the decoder's tokens also attend to each other, as in MAE.
      partial: see `Partial`. Where patches are thrown, "full" is "partial": the published loss is over the decoded
        patches. "progressive" rebuilds the thrown ones from the decoded ones around them, and learns from all.
        `throw_ratio`, which says the same as mask_ratio - kept_mask_ratio, is 0.5 for "partial" and "progressive" if
        neither is set.
      encoder: further arguments of the ViT, such as `reg_tokens`.

    Raises:
      UserError: the ratios contradict each other, or leave nothing to see, to decode or to throw; `indices` are not
        blocks of the encoder; options of feature maps are set with `weight_fm=False`.

    References:
      Fu et al., 2024, "Rethinking patch dependence for masked autoencoders".
    """

    encoder_class = VisionTransformer
    encoder_excludes = MAE.encoder_excludes | {"drop_path_rate"}
    non_encoder_patterns = (*MAE.non_encoder_patterns, "dec_norms.*", "wfm.*")

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
        decoder_depth: int = 12,
        decoder_num_heads: int = 16,
        mask_ratio: float = 0.75,
        kept_mask_ratio: float | None = None,
        retain: str = "random",
        norm_pix_loss: bool = True,
        weight_fm: bool = True,
        use_input: bool = True,
        indices: Sequence[int] | None = None,
        self_attn: bool = False,
        partial: Partial = FULL,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
        **encoder: Any,
    ):
        self.indices = _indices(indices, depth, weight_fm=weight_fm)
        self.weight_fm, self.use_input = weight_fm, use_input and weight_fm
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
        if weight_fm:
            vit.norm = nnx.data(None)
        target = (NormalizedPixels if norm_pix_loss else Pixels)(vit.patch_embed.patch_size, in_chans)
        masker = _masker(vit.grid, float(mask_ratio), kept_mask_ratio, retain, partial)
        if partial.reconstruction == "full" and masker.num_retained < masker.num_masked:
            partial = dataclasses.replace(partial, reconstruction="partial")
        decoder = CrossDecoder(
            embed_dim,
            target.size,
            grid=vit.grid,
            num_prefix_tokens=vit.num_prefix_tokens,
            num_maps=len(self.indices) + self.use_input if weight_fm else None,
            self_attn=self_attn,
            dim=decoder_embed_dim,
            depth=decoder_depth,
            num_heads=decoder_num_heads,
            partial=partial,
            norm_eps=encoder.get("norm_eps", 1e-6),
            **common,
        )
        super().__init__(encoder=vit, masker=masker, decoder=decoder, target=target)

    def backbone(self) -> Any:
        """The encoder as fine-tuning starts from it: with a new final norm."""
        if self.encoder.norm is not None:
            return self.encoder
        encoder = copied(self.encoder)
        encoder.norm = LayerNorm(encoder.embed_dim, eps=self.decoder.norm.eps)
        return encoder

    def encode(self, images: Float[Array, "b H W c"], masks: Masks) -> Float[Array, "m b n d"]:
        """The encoder's feature maps: prefix tokens, then the visible patches only."""
        runner = self.encoder.encode(self.encoder.embed(images, masks.ids_keep), masks.ids_keep)
        if not self.weight_fm:
            return self.encoder.final_norm(runner.tokens.x)[None]
        inputs = [runner.block_inputs[0].x] if self.use_input else []
        return jnp.stack([*inputs, *(runner.block_outputs[index].x for index in self.indices)])

    def picture(self, images: Float[Array, "b H W c"], key: PRNGKeyArray) -> Picture:
        """Reconstructs normalised images, for a report; visible patches have no prediction."""
        masks = self.draw(images, key=key)
        return super().picture(images, key)._replace(predicted=self.learned(masks))

    def summary(self) -> str:
        """A sentence for the report on what the framework does."""
        masker = self.masker
        decoded = masker.num_retained / masker.num_patches
        maps = f"{len(self.indices) + self.use_input} weighted feature maps" if self.weight_fm else "the last output"
        return (
            f"CrossMAE with {self.reconstruction} reconstruction: {masker.mask_ratio:.0%} of the patches are masked, "
            f"{decoded:.0%} are decoded by cross-attention to {maps} of the encoder."
        )

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """The tensor names of CrossMAE's repository; "agg" for PR-MIM's aggregation, which has no published weights."""
        return RULES

    @classmethod
    def encoder_tensors(cls, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """See `Framework.encoder_tensors`; a final norm that the file does not have is new, as in `backbone`."""
        width = len(tensors["patch_embed.proj.weight"])
        norm = {"norm.weight": np.ones(width, np.float32), "norm.bias": np.zeros(width, np.float32)}
        return {**norm, **super().encoder_tensors(tensors)}

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
        """Infers the arguments of the decoder from tensors under the names of CrossMAE's repository.

        Of the feature maps only the number is known: fewer than the blocks are taken for those of the last blocks.
        """
        if "decoder_blocks.0.cross_attn.q.weight" not in shapes:
            return None
        count = lambda pattern: len({match[1] for name in shapes if (match := re.match(pattern, name))})
        arguments: dict[str, Any] = {
            "decoder_embed_dim": shapes["mask_token"][-1],
            "decoder_depth": count(r"decoder_blocks\.(\d+)\."),
            "decoder_num_heads": 1,  # shapes do not depend on the number of heads
            "self_attn": "decoder_blocks.0.self_attn.proj.weight" in shapes,
            "weight_fm": "wfm.linear.weight" in shapes,
        }
        if arguments["weight_fm"]:
            depth, maps = count(r"blocks\.(\d+)\."), shapes["wfm.linear.weight"][1]
            arguments["use_input"] = maps > depth
            if maps < depth:
                arguments["indices"] = tuple(range(depth - maps, depth))
        return arguments | aggregation_of(shapes)


def _indices(indices: Sequence[int] | None, depth: int, *, weight_fm: bool) -> tuple[int, ...]:
    if indices is None:
        return tuple(range(depth))
    if not weight_fm:
        raise UserError(f"indices={tuple(indices)} has no effect with weight_fm=False, which reads the last block.")
    blocks = tuple(int(index) for index in indices)
    ascending = all(first < second for first, second in itertools.pairwise(blocks))
    if not blocks or not ascending or blocks[0] < 0 or blocks[-1] >= depth:
        raise UserError(
            f"indices={blocks} must be different blocks from 0 to {depth - 1}, ascending: leave them out for all."
        )
    return blocks


def _masker(
    grid: tuple[int, int], mask_ratio: float, kept_mask_ratio: float | None, retain: str, partial: Partial
) -> RankMasker:
    """The masker; `kept_mask_ratio` stands for the default throw ratio, and excludes any other."""
    throw_ratio = partial.throwing()["throw_ratio"]
    if kept_mask_ratio is not None:
        kept_mask_ratio, throw_ratio = float(kept_mask_ratio), partial.throw_ratio or 0.0
    return RankMasker(grid, mask_ratio, throw_ratio, retain, kept_mask_ratio)


# CrossMAE's repository keeps encoder and decoder side by side, like MAE's.
RULES = (
    *within("", "decoder.", PUBLISHED),
    Rule("mask_token", "decoder.mask_token"),
    Rule("wfm.linear.weight", "decoder.weights.kernel", linear, linear_back),
    Rule("dec_norms.{any}.weight", "decoder.map_norms.{any}.scale"),
    Rule("dec_norms.{any}.bias", "decoder.map_norms.{any}.bias"),
    *within("decoder_", "decoder."),
)
