"""TEC (Gao et al., 2022): a frozen teacher's features and attention as targets; and PR-MIM on it (Li et al., 2024).

The student sees the visible patches, as in MAE. Adaptors fuse the outputs of all its blocks. A decoder with two
branches that share their blocks predicts the teacher's features of the masked patches, and the attention of the
teacher's CLS token and of the patches that this token attends to most.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.mim.mae import MAE, STYLE
from jaxprune.mim.parts import teacher_targets as teaching
from jaxprune.mim.parts.base import Framework, MaskedOutput
from jaxprune.mim.parts.branched_decoder import BranchedDecoder, branch_rules
from jaxprune.mim.parts.masker import Masks, RandomMasker
from jaxprune.mim.parts.partial_reconstruction import FULL, Partial
from jaxprune.mim.parts.rebuild_thrown import aggregation_of
from jaxprune.mim.parts.teacher_features import Adaptors, TeacherFeatures, attention_loss, divisor_of
from jaxprune.models.vit import VisionTransformer
from jaxprune.nn import Mlp
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.images import require_float
from jaxprune.nn.linear import xavier_uniform
from jaxprune.nn.params import copied, frozen
from jaxprune.nn.tensor_rules import Rule, within
from jaxprune.preprocessing import trained_on


class _TecOutput(NamedTuple):
    adapted_latent: Float[Array, "b n d"]
    pred_feature: Float[Array, "b p q"]
    pred_attention: Float[Array, "b 1 m h p"]
    loss_feature: Float[Array, ""]
    loss_attention: Float[Array, ""]
    masks: Masks


class TecOutput(_TecOutput, MaskedOutput):
    """The outputs of TEC besides its loss.

    Attributes:
      adapted_latent: the student's output after the adaptors, prefix tokens first, then the visible patches in the
        order of `masks.ids_keep`.
      pred_feature: predicted features of every patch; zeros where nothing is predicted.
      pred_attention: predicted logits in the shape of their target, see `TeacherTargets`.
      loss_feature, loss_attention: the two terms of the loss.
      masks: which patches were visible, masked and decoded.
    """

    __slots__ = ()

    @property
    def pred(self) -> Float[Array, "b p q"]:
        """The predicted features."""
        return self.pred_feature

    @property
    def latent(self) -> Float[Array, "b n d"]:
        """The decoder's input."""
        return self.adapted_latent

    @property
    def mask(self) -> Float[Array, "b p"]:
        """1 where the student did not see the patch, else 0."""
        return self.masks.masked.astype(jnp.float32)


class TecFlops(NamedTuple):
    """The cost of TEC by part."""

    patch_embed: int
    encoder: int
    adapt: int
    decoder_embed: int
    decoder: int
    aggregate: int
    predict: int
    attend: int
    teacher: int

    total = property(sum)  # of all parts


class TEC(Framework):
    """Predicts a teacher's features and attention on the whole image from its visible patches.

    Args:
      teacher: a frozen vision transformer, or its recipe (see `mim.create`); None if targets are passed at the call.
        Its patch size may differ, as long as the number of patches is the same: images are resized for it. Its width
        and heads may differ: predictions have the teacher's.
      num_queries: number of patches whose attention is learned besides that of the CLS token (TEC: 9 for iBOT, 15 for
        MAE).
      att_tau: temperature of the target logits (TEC: 1.0 for iBOT, 1.8 for MAE).
      target_dim, target_heads: width and heads of the targets if `teacher` is None; by default the student's.
      num_adaptors: number of adaptors, which divide the blocks evenly; None means one per three blocks, or one for all.
      mlp_ratio: MLP ratio of encoder and decoder, which also share `qkv_bias`, `norm_eps` and `init_values`.
      decoder_embed_dim, decoder_depth, decoder_num_heads: see `TokenDecoder`.
      mask_ratio: see `RandomMasker`.
      partial: see `Partial`; "full" reconstruction is TEC, the others throw 0.5 by default. "partial" learns the
        features of the decoded patches and the attention among visible and decoded ones; "progressive" rebuilds the
        thrown ones in both branches.
      encoder: further arguments of the student, a ViT.

    Raises:
      UserError: the ratios leave nothing to see, to decode or to throw; the adaptors do not share the blocks evenly;
        the teacher does not fit.
    """

    encoder_class = VisionTransformer
    encoder_excludes = MAE.encoder_excludes | {"drop_path_rate"}
    non_encoder_patterns = (
        *Framework.non_encoder_patterns,
        *MAE.non_encoder_patterns,
        *("encoder_adaptor.*", "forward_fea_decoder.*", "forward_att_decoder.*", "cls_token_mlp.*"),
    )
    networks = aligned = frozenset({"teacher"})

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
        decoder_depth: int = 2,
        decoder_num_heads: int = 16,
        mask_ratio: float = 0.75,
        teacher: Any = None,
        num_queries: int = 9,
        att_tau: float = 1.0,
        target_dim: int | None = None,
        target_heads: int | None = None,
        num_adaptors: int | None = None,
        partial: Partial = FULL,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
        **encoder: Any,
    ):
        adaptors = divisor_of(depth, num_adaptors)
        style = {"mlp_ratio": mlp_ratio, **{name: encoder[name] for name in STYLE if name in encoder}}
        layers = {"kernel_init": xavier_uniform, "dtype": dtype, "rngs": rngs}
        vit = VisionTransformer(
            img_size=img_size,
            patch_size=patch_size,
            in_chans=in_chans,
            num_classes=0,
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            mlp_ratio=mlp_ratio,
            patch_kernel_init=xavier_uniform,
            remat=remat,
            **{"pos_embed": "sincos", **encoder},
            **layers,
        )
        if vit.cls_token is None:
            raise UserError("TEC predicts the attention of the CLS token: leave out class_token=False.")
        if teacher is not None:
            teaching.require_teacher(teacher, vit.grid, num_queries)
            target_dim, target_heads = teacher.embed_dim, teacher.num_heads
        self.teacher = nnx.data(None if teacher is None else frozen(teacher))
        self.num_queries, self.att_tau = num_queries, att_tau
        width = target_dim or embed_dim
        self.cls_token_mlp = Mlp(embed_dim, int(embed_dim * mlp_ratio), **layers)
        self.adaptors = Adaptors(embed_dim, depth, adaptors, 4 * decoder_embed_dim, **layers)
        decoder = BranchedDecoder(
            embed_dim,
            width,
            target_heads or num_heads,
            grid=vit.grid,
            num_prefix_tokens=vit.num_prefix_tokens,
            dim=decoder_embed_dim,
            depth=decoder_depth,
            num_heads=decoder_num_heads,
            style=style,
            partial=partial,
            dtype=dtype,
            remat=remat,
            rngs=rngs,
        )
        super().__init__(
            encoder=vit,
            masker=RandomMasker(vit.grid, float(mask_ratio), **partial.throwing()),
            decoder=decoder,
            target=TeacherFeatures(width, vit.patch_embed.patch_size),
        )

    def backbone(self) -> Any:
        """The student as fine-tuning starts from it: its CLS token is the output of the CLS token's MLP."""
        encoder = copied(self.encoder)
        token = encoder.cls_token[...]
        encoder.cls_token[...] = self.cls_token_mlp(token).astype(token.dtype)
        return encoder

    def encode(self, images: Float[Array, "b H W c"], masks: Masks) -> Float[Array, "b n d"]:
        """The student's output after the adaptors: prefix tokens, then the visible patches only."""
        encoder = self.backbone()
        runner = encoder.encode(encoder.embed(images, masks.ids_keep), masks.ids_keep)
        *features, last = [tokens.x for tokens in runner.block_outputs]
        return self.adaptors((*features, encoder.final_norm(last)))

    def teach(self, images: Float[Array, "b H W c"]) -> teaching.TeacherTargets:
        """The teacher's targets for normalised images.

        Raises:
          UserError: there is no teacher.
        """
        if self.teacher is None:
            raise UserError(
                "TEC has no teacher: build it with teacher=, a vision transformer, or pass target_feature=, "
                "target_attention= and target_topk_idx= at the call."
            )
        return teaching.see(self.teacher, images, self.num_queries, normalised=trained_on(self))

    def __call__(
        self,
        images: Float[Array, "b H W c"],
        *,
        key: PRNGKeyArray | None = None,
        target_feature: Float[Array, "b p q"] | None = None,
        target_attention: Float[Array, "b 1 m h p"] | None = None,
        target_topk_idx: Int[Array, "b 1 k"] | None = None,
        **draws: Any,
    ) -> tuple[Float[Array, ""], TecOutput]:
        """Returns the loss of a batch of normalised images, and the other outputs.

        Args:
          key: draws the random numbers; values in `draws` (noise, first) replace a draw.
          target_feature, target_attention, target_topk_idx: see `TeacherTargets`; all or none, instead of the
            teacher's.

        Raises:
          UserError: the images are not a batch of floating-point arrays; there are no targets.
        """
        require_float(images, 4)
        if target_feature is not None and target_attention is not None and target_topk_idx is not None:
            targets = teaching.TeacherTargets(target_feature, target_attention, target_topk_idx)
        elif target_feature is None and target_attention is None and target_topk_idx is None:
            targets = self.teach(images)
        else:
            raise UserError("target_feature, target_attention and target_topk_idx belong together: pass all or none.")
        masks = self.draw(images, key=key, **draws)
        latent = self.encode(images, masks)
        feature = self.decoder(latent, masks)
        ids = targets.topk_idx[:, 0]
        attention = self.decoder.attend(latent, masks, ids)
        of_feature = self.error(feature, teaching.normalize_over_tokens(targets.feature), self.learned(masks))
        predicted = masks.present if self.reconstruction == "partial" else None
        of_attention = attention_loss(attention, targets.attention[:, 0], ids, self.att_tau, predicted)
        out = TecOutput(latent, feature, attention[:, None], of_feature, of_attention, masks)
        return of_feature + of_attention, out

    def mean_colour_loss(self, images: Float[Array, "b H W c"], masks: Masks) -> None:
        """Returns None: a mean colour does not predict features."""

    def flops(self, *, as_published: bool = True) -> TecFlops:
        """Multiply-accumulates of one image by part, including the teacher's; see `Framework.flops`."""
        masker, costs = self.masker, super().flops(as_published=as_published)
        of_decoder = self.decoder.flops(
            masker.num_visible, masker.num_visible + masker.num_retained, as_published=as_published
        )
        mlp = self.cls_token_mlp
        cells = masker.num_visible + masker.num_retained if self.reconstruction == "partial" and as_published else None
        return TecFlops(
            costs.patch_embed,
            costs.encoder,
            linear_flops(mlp.fc1, 1)
            + linear_flops(mlp.fc2, 1)
            + self.adaptors.flops(self.encoder.num_prefix_tokens + masker.num_visible),
            *of_decoder,
            attend=(1 + self.num_queries) * (cells or self.num_patches) * self.target.size,
            teacher=0 if self.teacher is None else teaching.flops(self.teacher, self.num_queries),
        )

    def summary(self) -> str:
        """A sentence for the report on what the framework does."""
        return (
            f"TEC with {self.reconstruction} reconstruction predicts a teacher's features and attention: "
            f"{self.masker.mask_ratio:.0%} of the patches are masked, {self.masker.throw_ratio:.0%} never enter the "
            "decoder."
        )

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """The tensor names of TEC's repository; "agg" for PR-MIM's aggregations, which have no published weights."""
        return RULES

    @classmethod
    def encoder_tensors(cls, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """See `Framework.encoder_tensors`; the CLS token is the output of its MLP, as in `backbone`."""
        x = jnp.asarray(tensors["cls_token"], jnp.float32)
        for layer in ("fc1", "fc2"):
            weight, bias = (jnp.asarray(tensors[f"cls_token_mlp.{layer}.{part}"]) for part in ("weight", "bias"))
            x = x @ weight.T + bias[None, None]
            x = jax.nn.gelu(x, approximate=False) if layer == "fc1" else x
        return {**super().encoder_tensors(tensors), "cls_token": np.asarray(x)}

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
        """Infers the arguments of adaptors, decoder and aggregation from tensors with the names of TEC's repository."""
        embed, qk = "forward_fea_decoder.decoder_embed.weight", "forward_att_decoder.decoder_qk.weight"
        if embed not in shapes or qk not in shapes:
            return None
        count = lambda pattern: len({match[1] for name in shapes if (match := re.match(pattern, name))})
        arguments: dict[str, Any] = {
            "decoder_embed_dim": shapes[embed][0],
            "decoder_depth": count(r"decoder_blocks\.(\d+)\."),
            "decoder_num_heads": 1,  # shapes do not depend on the number of heads
            "num_adaptors": count(r"encoder_adaptor\.fuse_fcs\.(\d+)\."),
            "target_dim": shapes[qk][0] // 2,
            "target_heads": 1,
        }
        return arguments | aggregation_of(shapes, "forward_fea_decoder.")


# TEC's repository has one position table for both branches, and no teacher in its files, whose names are kept.
RULES = (
    Rule("teacher.{any}", "teacher.{any}"),
    Rule("decoder_pos_embed", "decoder.feature.pos_embed"),
    Rule("encoder_adaptor.adap_before.weight", "adaptors.norm_before.scale"),
    Rule("encoder_adaptor.adap_before.bias", "adaptors.norm_before.bias"),
    Rule("encoder_adaptor.adap_after.weight", "adaptors.norm_after.scale"),
    Rule("encoder_adaptor.adap_after.bias", "adaptors.norm_after.bias"),
    *within("encoder_adaptor.fuse_fcs.", "adaptors.fuse."),
    *within("encoder_adaptor.adap_mlps.", "adaptors.mlps."),
    *within("cls_token_mlp.", "cls_token_mlp."),
    *branch_rules("forward_fea_decoder.", "decoder.feature.", "decoder_pred"),
    *branch_rules("forward_att_decoder.", "decoder.attention.", "decoder_qk"),
    *within("decoder_blocks.", "decoder.blocks."),
)
