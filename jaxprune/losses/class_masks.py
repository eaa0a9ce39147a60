"""Losses of one mask per class (SegViT, Zhang et al., 2022): class cross-entropy, focal loss and Dice loss."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int


class ClassMaskLosses(NamedTuple):
    """The three losses, not weighted."""

    classes: Float[Array, ""]
    masks: Float[Array, ""]
    dice: Float[Array, ""]


def class_mask_losses(
    class_logits: Float[Array, "b k c"],
    mask_logits: Float[Array, "b k h w"],
    labels: Int[Array, "b h w"],
    *,
    absent_weight: float = 0.1,
    alpha: float = 0.25,
    gamma: float = 2.0,
) -> ClassMaskLosses:
    """The losses of queries that stand for the classes in order, at the size of the labels.

    Pixels without a class are background of every mask. Masks count for the classes in the image only, and both their
    losses are divided by the number of these in the batch.

    Args:
      class_logits: of each query; the last column says that its class is absent. With one column a class, a present
        class's target is its own column; with two columns in all, it is the first.
      mask_logits: of each query.
      labels: the class of each pixel; labels that are not classes, such as 255, are ignored.
      absent_weight: weight of the absent classes in the weighted mean of the cross-entropy.
      alpha, gamma: of the focal loss (Lin et al., 2017).
    """
    _, num_classes, columns = class_logits.shape
    targets = (labels[:, None] == jnp.arange(num_classes)[None, :, None, None]).astype(jnp.float32)
    present = targets.max((2, 3))
    count = jnp.maximum(present.sum(), 1.0)
    own_column = jnp.arange(num_classes) if columns > 2 else jnp.zeros((num_classes,), jnp.int32)
    column = jnp.where(present > 0, own_column[None], columns - 1)
    rows = jax.nn.log_softmax(class_logits.astype(jnp.float32), axis=-1)
    of_target = jnp.take_along_axis(rows, column[..., None], axis=-1)[..., 0]
    weights = jnp.where(present > 0, 1.0, absent_weight)
    logits = mask_logits.astype(jnp.float32)
    probability = jax.nn.sigmoid(logits)
    entropy = jax.nn.softplus(logits) - logits * targets
    right = probability * targets + (1 - probability) * (1 - targets)
    focal = (alpha * targets + (1 - alpha) * (1 - targets)) * (1 - right) ** gamma * entropy
    overlap = (probability * targets).sum((2, 3))
    dice = 1 - (2 * overlap + 1) / (probability.sum((2, 3)) + targets.sum((2, 3)) + 1)
    return ClassMaskLosses(
        -(weights * of_target).sum() / weights.sum(),
        (focal.mean((2, 3)) * present).sum() / count,
        (dice * present).sum() / count,
    )
