"""Cross-entropy and accuracy of label maps, as in mmsegmentation."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxprune.ops.label_maps import IGNORED


def pixel_cross_entropy(
    logits: Float[Array, "b h w k"],
    labels: Int[Array, "b h w"],
    *,
    ignored: int = IGNORED,
    valid_only: bool = False,
) -> Float[Array, ""]:
    """Softmax cross-entropy of each pixel, averaged over all pixels of the batch.

    >>> import jax.numpy as jnp
    >>> logits, labels = jnp.zeros((1, 1, 2, 4)), jnp.array([[[3, 255]]])
    >>> [round(float(pixel_cross_entropy(logits, labels, valid_only=v)), 3) for v in (False, True)]
    [0.693, 1.386]

    Args:
      labels: the class of each pixel.
      ignored: label of pixels without a class; their loss is 0.
      valid_only: average over the pixels with a class; by default over all of them, as published.
    """
    valid = labels != ignored
    rows = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    of_label = jnp.take_along_axis(rows, jnp.where(valid, labels, 0)[..., None].astype(jnp.int32), axis=-1)[..., 0]
    count = jnp.maximum(valid.sum(), 1) if valid_only else valid.size
    return -jnp.where(valid, of_label, 0).sum() / count


def pixel_accuracy(
    logits: Float[Array, "b h w k"], labels: Int[Array, "b h w"], *, ignored: int = IGNORED
) -> Float[Array, ""]:
    """The share of all pixels, ignored ones included, whose class is predicted."""
    return ((logits.argmax(-1) == labels) & (labels != ignored)).mean(dtype=jnp.float32)
