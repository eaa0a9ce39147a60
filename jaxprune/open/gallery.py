"""Retrieval as classification: a network without classes answers with the image of a gallery that is nearest."""

from typing import Any

import numpy as np
from jaxtyping import Float

from jaxprune.errors import UserError
from jaxprune.open.new_head import with_head

# Of the softmax over cosines: of the size of the differences between near images, so that the largest probability tells
# the margin of the nearest one. At the .07 of kNN votes all of the gallery counts, and tells less.
TEMPERATURE = 0.01


def with_gallery(model: Any, features: Float[np.ndarray, "n d"]) -> Any:
    """Returns a copy of a network, with its plan, whose n classes are the images of a gallery; the nearest one wins.

    A logit is the cosine between the features of an image and of one of the gallery, over a temperature, so that the
    largest probability says how much nearer the nearest is than all others: what a cascade of such networks asks
    before an image may leave.

    >>> import jax, jaxprune; from flax import nnx
    >>> sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2)
    >>> model = jaxprune.models.create("vit", **sizes, num_classes=0, rngs=nnx.Rngs(0))
    >>> images = jax.random.normal(jax.random.key(0), (5, 16, 16, 3))
    >>> network = with_gallery(model, np.asarray(model(images)[0]))
    >>> network(images[3:])[0].argmax(-1).tolist()
    [3, 4]

    Args:
      model: a network from `models.create`.
      features: of the gallery, by the dense network: those of its cheaper forms are compared with the same ones.

    Raises:
      UserError: see `with_head` and `gallery_kernel`.
    """
    return with_head(model, gallery_kernel(features), np.zeros(len(features), np.float32))


def gallery_kernel(features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "d n"]:
    """Returns the kernel of a linear layer from features to cosines over the temperature.

    The features of a query are not divided by their own length, which a linear layer cannot do, but by the mean length
    of those of the gallery: the order of the images is that of their cosines.

    >>> gallery_kernel(np.array([[2.0, 0.0], [0.0, 2.0]])).round().tolist()
    [[50.0, 0.0], [0.0, 50.0]]

    Args:
      features: of the gallery.

    Raises:
      UserError: there are none, or one has no direction.
    """
    features = np.asarray(features, np.float32)
    if features.ndim != 2 or not len(features):
        raise UserError(f"A gallery of features of shape {features.shape} holds no image: give one row an image.")
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    if not (np.isfinite(lengths).all() and lengths.min() > 0):
        raise UserError(
            "The gallery has features of length 0, or not finite, which are near to nothing: leave them out."
        )
    return (features / lengths).T / (TEMPERATURE * lengths.mean())
