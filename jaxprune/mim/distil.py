"""Distillation of a frozen network's features on images without labels, and PR-MIM on the patches left out.

There is no mask by default: the student sees the same images as the teacher, and predicts the teacher's features of
every patch and of the whole image. With "partial" and "progressive" reconstruction the student sees only some patches.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxprune import losses
from jaxprune.errors import UserError
from jaxprune.mim.mae import MAE
from jaxprune.mim.parts.base import Framework, MaskedOutput, Picture
from jaxprune.mim.parts.feature_head import FeatureHead
from jaxprune.mim.parts.input_masker import InputMasker
from jaxprune.mim.parts.masker import Masks
from jaxprune.mim.parts.partial_reconstruction import FULL, Partial
from jaxprune.mim.parts.teacher_features import TeacherFeatures
from jaxprune.mim.parts.teacher_targets import image_size, prepared
from jaxprune.models.vit import VisionTransformer, mean_cls
from jaxprune.nn import Host
from jaxprune.nn.block_cost import block_flops, block_tokens
from jaxprune.nn.images import require_float
from jaxprune.nn.linear import xavier_uniform
from jaxprune.nn.params import frozen
from jaxprune.ops.resize import resize
from jaxprune.preprocessing import trained_on


class _DistilOutput(NamedTuple):
    pred: Float[Array, "b p q"]
    pred_cls: Float[Array, "b q"]
    latent: Float[Array, "b n d"]
    loss_feature: Float[Array, ""]
    loss_cls: Float[Array, ""]
    masks: Masks


class DistilOutput(_DistilOutput, MaskedOutput):
    """The outputs of the distillation besides its loss.

    Attributes:
      pred: predicted features of every patch; zeros where nothing is predicted.
      pred_cls: predicted features of the whole image.
      latent: the student's output, prefix tokens first, then the patches that it saw.
      loss_feature, loss_cls: the terms of the loss.
      masks: which patches the student did not see.
    """

    __slots__ = ()


class DistilFlops(NamedTuple):
    """The cost of the distillation by part."""

    patch_embed: int
    encoder: int
    decoder: int
    teacher: int

    total = property(sum)  # of all parts


@dataclasses.dataclass(frozen=True)
class DistilledFeatures(TeacherFeatures):
    """A teacher's features; pictures have them at every patch."""

    picture_note = f"{TeacherFeatures.picture_note} Every patch with a prediction is grey in the second column."


class Distil(Framework):
    """A ViT that learns a frozen network's features of every patch and of the whole image.

    The feature of an image is that of the CLS token, or the mean of several, or without one the mean over the patches.
    A head, which is dropped afterwards, maps the student's tokens to the teacher's width.

    >>> sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=1, num_heads=2)
    >>> distil = Distil(**sizes, target_dim=24, rngs=nnx.Rngs(0))
    >>> images, features = jnp.zeros((1, 16, 16, 3)), jnp.ones((1, 16, 24))
    >>> distil(images, target_feature=features, target_cls=features[:, 0])[1].pred.shape
    (1, 16, 24)

    Args:
      teacher: a frozen network with features, or its recipe (see `mim.create`); None if targets are passed at the call.
        Images are resized to its size, and its maps (bilinear, antialiased) to the grid of the student.
      target_dim: width of the targets if `teacher` is None; by default the student's.
      norm: whether the features are those after the teacher's final norm.
      smooth_l1: share of the smooth L1 distance in each term, besides 1 - cosine.
      cls_weight: weight of the term of the whole image; that of the patches has 1 - cls_weight.
      retain: how the patches are chosen that the student sees, if not all: see `InputMasker`.
      partial: see `Partial`: its thrown patches (by default half) are those that the student does not see. "partial"
        learns the features of the others; "progressive" rebuilds the student's tokens at thrown patches from those
        around them, and learns all features.
      encoder: the arguments of the student, such as `img_size`, `patch_size`, `embed_dim`, `depth` and `num_heads`.

    Raises:
      UserError: the teacher is not a dense network of images; a share is not within [0, 1]; nothing would be seen.

    References:
      The head, 1 - cosine and the equal weights are those of Pixio's distillation (Yang et al., 2025), which takes the
      features before the norm, and has a term for each of several CLS tokens.
    """

    encoder_class = VisionTransformer
    encoder_excludes = MAE.encoder_excludes | {"drop_path_rate"}
    networks = frozenset({"teacher"})

    def __init__(
        self,
        *,
        teacher: Any = None,
        target_dim: int | None = None,
        norm: bool = True,
        smooth_l1: float = 0.0,
        cls_weight: float = 0.5,
        retain: str = "random",
        partial: Partial = FULL,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **encoder: Any,
    ):
        for name, share in (("smooth_l1", smooth_l1), ("cls_weight", cls_weight)):
            if not 0 <= share <= 1:
                raise UserError(f"{name}={share} is a share: choose one from 0 to 1.")
        inits = {"kernel_init": xavier_uniform, "patch_kernel_init": xavier_uniform}
        vit = VisionTransformer(num_classes=0, **inits, dtype=dtype, rngs=rngs, **encoder)
        if teacher is not None:
            _require_teacher(teacher)
            target_dim = teacher.sites(image_size(teacher) or vit.patch_embed.img_size)[-1].embed_dim
        self.teacher = nnx.data(None if teacher is None else frozen(teacher))
        self.norm, self.smooth_l1, self.cls_weight = norm, smooth_l1, cls_weight
        width = target_dim or vit.embed_dim
        super().__init__(
            encoder=vit,
            masker=InputMasker(vit.grid, partial.throwing()["throw_ratio"], retain),
            decoder=FeatureHead(
                vit.embed_dim,
                width,
                grid=vit.grid,
                num_prefix_tokens=vit.num_prefix_tokens,
                num_heads=vit.num_heads,
                partial=partial,
                dtype=dtype,
                rngs=rngs,
            ),
            target=DistilledFeatures(width, vit.patch_embed.patch_size),
        )

    def encode(self, images: Float[Array, "b H W c"], masks: Masks) -> Float[Array, "b n d"]:
        ids = masks.ids_keep if masks.ids_keep.shape[1] < self.num_patches else None
        return self.encoder.final_norm(self.encoder.encode(self.encoder.embed(images, ids), ids).tokens.x)

    def learned(self, masks: Masks) -> Bool[Array, "b p"]:
        """The patches in the loss: all, or those that the student sees under partial reconstruction."""
        return ~masks.masked if self.reconstruction == "partial" else jnp.ones_like(masks.masked)

    def teach(self, images: Float[Array, "b H W c"]) -> tuple[Float[Array, "b p q"], Float[Array, "b q"]]:
        """The teacher's features of every patch and of the whole image, for normalised images.

        Raises:
          UserError: there is no teacher.
        """
        if self.teacher is None:
            raise UserError(
                "There is no teacher: build distil with teacher=, a network, or pass target_feature= and target_cls= "
                "at the call."
            )
        features, cls = _features(self.teacher, prepared(self.teacher, images, trained_on(self)), norm=self.norm)
        if features.shape[1:3] != self.grid:
            features = resize(features, self.grid, "bilinear", antialias=True)
        return jax.lax.stop_gradient((features.reshape(len(features), self.num_patches, -1), cls))

    def __call__(
        self,
        images: Float[Array, "b H W c"],
        *,
        key: PRNGKeyArray | None = None,
        target_feature: Float[Array, "b p q"] | None = None,
        target_cls: Float[Array, "b q"] | None = None,
        **draws: Any,
    ) -> tuple[Float[Array, ""], DistilOutput]:
        """Returns the loss of a batch of normalised images, and the other outputs.

        Args:
          key: draws the patches that the student does not see, where there are any.
          target_feature, target_cls: features of every patch and of the image; both or none, instead of the teacher's.
          draws: see `InputMasker.draw`.

        Raises:
          UserError: the images are not a batch of floating-point arrays; there are no targets.
        """
        require_float(images, 4)
        if (target_feature is None) != (target_cls is None):
            raise UserError("target_feature and target_cls belong together: pass both or none.")
        if target_feature is None or target_cls is None:
            target_feature, target_cls = self.teach(images)
        masks = self.draw(images, key=key, **draws)
        latent = self.encode(images, masks)
        pred, pred_cls = self.decoder(latent, masks), self.decoder.project(self._whole(latent))
        distance = lambda pred, target, where: losses.feature_distillation(
            pred, target, where, smooth_l1=self.smooth_l1
        )
        of_feature = distance(pred, target_feature, self.learned(masks))
        of_cls = distance(pred_cls[:, None], target_cls[:, None], jnp.ones((len(images), 1)))
        loss = self.cls_weight * of_cls + (1 - self.cls_weight) * of_feature
        return loss, DistilOutput(pred, pred_cls, latent, of_feature, of_cls, masks)

    def _whole(self, latent: Float[Array, "b n d"]) -> Float[Array, "b d"]:
        """The student's token of the whole image: CLS, the mean of several, or that of the patches that it sees."""
        if self.encoder.cls_token is not None:
            return mean_cls(latent, self.encoder.num_cls_tokens)
        return latent[:, self.encoder.num_prefix_tokens :].mean(1)

    def mean_colour_loss(self, images: Float[Array, "b H W c"], masks: Masks) -> None:
        """Returns None: a mean colour does not predict features."""

    def picture(self, images: Float[Array, "b H W c"], key: PRNGKeyArray) -> Picture:
        """The predicted features of normalised images in colours, for a report."""
        picture = super().picture(images, key)
        predicted = picture.predicted if self.reconstruction == "partial" else jnp.ones_like(picture.masked)
        return picture._replace(masked=predicted | picture.masked, predicted=predicted)

    def flops(self, *, as_published: bool = True) -> DistilFlops:
        """Multiply-accumulates of one image by part, including the teacher's; see `Framework.flops`."""
        teacher = 0 if self.teacher is None else _flops(self.teacher, self.encoder.patch_embed.img_size)
        return DistilFlops(*super().flops(as_published=as_published), teacher=teacher)

    def summary(self) -> str:
        """A sentence for the report on what the framework does."""
        teacher = "a teacher" if self.teacher is None else f"a frozen {type(self.teacher).__name__}"
        hidden = self.masker.num_masked / self.num_patches
        return (
            f"Distillation with {self.reconstruction} reconstruction: the features of {teacher}, of "
            f"{self.target.size} channels, are learned by a student that does not see {hidden:.0%} of the patches."
        )

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
        """Infers the width of the targets from the tensors of the head."""
        head = shapes.get("decoder.fc2.weight")
        return None if head is None or "decoder.fc1.weight" not in shapes else {"target_dim": head[0]}


def _require_teacher(teacher: Any) -> None:
    if not isinstance(teacher, Host) or teacher.plan is not None:
        kind = type(teacher).__name__
        raise UserError(
            f"The teacher is a {kind}{' under a plan' if isinstance(teacher, Host) else ''}, but must be a dense "
            "network from models.create, or one opened by open.open_network: give another teacher."
        )
    if len(getattr(teacher, "grid", (0, 0))) != 2:
        raise UserError(f"The teacher {type(teacher).__name__} reads clips, and the student images: give another one.")


def _features(
    teacher: Any, images: Float[Array, "b H W c"], *, norm: bool
) -> tuple[Float[Array, "b h w q"], Float[Array, "b q"]]:
    """The teacher's last map, and its CLS token, the mean of several, or that of the map, in float32."""
    (last,) = teacher.forward_intermediates(images, 1, norm=norm, return_prefix_tokens=True, intermediates_only=True)
    features, prefix = last if isinstance(last, tuple) else (last, None)
    features = features.astype(jnp.float32)
    if prefix is None or getattr(teacher, "cls_token", None) is None:
        return features, features.mean((1, 2))
    return features, mean_cls(prefix.astype(jnp.float32), getattr(teacher, "num_cls_tokens", 1))


def _flops(teacher: Any, img_size: tuple[int, int]) -> int:
    """Multiply-accumulates of the features of one image."""
    size = image_size(teacher) or img_size
    overhead, blocks = teacher.overhead(size), 0
    for site in teacher.sites(size):
        tokens = site.num_prefix_tokens + site.num_patches
        blocks += block_flops(teacher.block_cost(site), block_tokens(None, tokens, tokens))
    return overhead.embed * teacher.entrance(size).num_patches + overhead.between + blocks
