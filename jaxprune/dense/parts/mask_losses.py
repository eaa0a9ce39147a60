"""The training loss of heads whose queries stand for the classes: of all stages, by class and mask logits."""

from collections.abc import Iterable, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune.dense.parts.base import SegmentationLoss
from jaxprune.errors import UserError
from jaxprune.losses.class_masks import class_mask_losses
from jaxprune.ops.label_maps import IGNORED
from jaxprune.ops.resize import resize


def mask_losses(
    stages: Iterable[tuple[Float[Array, "b k c"], Float[Array, "b k h w"]]],
    labels: Int[Array, "b H W"],
    weights: Sequence[float],
    *,
    absent_weight: float,
    ignored: int = IGNORED,
    valid_only: bool = False,
) -> tuple[Float[Array, ""], SegmentationLoss]:
    """Returns the sum of the weighted losses of all stages, and its parts; the last stage's are without a number.

    Args:
      stages: class logits and mask logits of each.
      labels: the class of each pixel.
      weights: of the classes, the masks and their overlap.
      absent_weight: see `class_mask_losses`.
      ignored: label of pixels without a class.
      valid_only: has to be False: a mask covers all pixels, and those without a class are its background.

    Raises:
      UserError: `valid_only` is True.
    """
    if valid_only:
        raise UserError(
            "valid_only=True averages over the pixels with a class, but the masks of SegViT and DToP cover all pixels: "
            "leave it False, or train another head."
        )
    stages = list(stages)
    labels = labels.astype(jnp.int32)
    labels, shape, losses = jnp.where(labels == ignored, -1, labels), (labels.shape[1], labels.shape[2]), {}
    for stage, (class_logits, masks) in enumerate(stages):
        parts = class_mask_losses(class_logits, resized_masks(masks, shape), labels, absent_weight=absent_weight)
        suffix = "" if stage == len(stages) - 1 else f"_{stage}"
        for name, part, weight in zip(("classes", "masks", "dice"), parts, weights, strict=True):
            losses[f"{name}{suffix}"] = weight * part
    return jnp.stack(list(losses.values())).sum(), SegmentationLoss(losses, {})


def resized_masks(masks: Float[Array, "b k h w"], shape: tuple[int, int]) -> Float[Array, "b k H W"]:
    """Mask logits at another size, bilinear."""
    return jnp.moveaxis(resize(jnp.moveaxis(masks, 1, -1), shape, "bilinear"), -1, 1)
