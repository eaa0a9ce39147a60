"""k-nearest-neighbour classification of features, as in DINO (Wu et al., 2018; Caron et al., 2021)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxprune.errors import UserError


def knn_classes(
    features: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, "n"],
    queries: Float[np.ndarray, "m d"],
    *,
    k: int = 20,
    temperature: float = 0.07,
    batch_size: int = 1024,
) -> Int[np.ndarray, "m"]:
    """Classifies queries: the k nearest features by cosine vote with weights exp(cosine / temperature).

    >>> knn_classes(np.eye(2, dtype=np.float32), np.array([5, 7]), np.array([[0.1, 1.0]], np.float32), k=1)
    array([7], dtype=int32)

    Args:
      features: labelled features.
      labels: their classes, from 0.
      k: number of neighbours that vote; all features if there are fewer.
      batch_size: queries per batch, which bounds the memory.

    Raises:
      UserError: there are no features, or k is below 1.
    """
    if not len(features) or k < 1:
        raise UserError(f"{k} nearest of {len(features)} features cannot vote: give features, and k of 1 or more.")
    return _classes(features, labels, queries, k=min(k, len(features)), temperature=temperature, batch_size=batch_size)


def knn_classes_of_others(
    features: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, "n"],
    queries: Float[np.ndarray, "n d"],
    *,
    k: int = 20,
    temperature: float = 0.07,
) -> Int[np.ndarray, "n"]:
    """Classifies queries as `knn_classes` does, without the vote of the query's own image.

    >>> rows = np.array([[1, 0.1], [1, 0], [0, 1]], np.float32)
    >>> knn_classes_of_others(rows, np.array([0, 0, 1]), rows, k=1)
    array([0, 0, 0], dtype=int32)

    Args:
      features: labelled features, one per image.
      labels: their classes, from 0.
      queries: other features of the same images, in the same order.
      k: number of neighbours that vote; all other images if there are fewer.

    Raises:
      UserError: there is a single image, or k is below 1.
    """
    require_others(len(features), k)
    images = np.arange(len(queries))
    k = min(k, len(features) - 1)
    return _classes(features, labels, queries, k=k, temperature=temperature, batch_size=1024, images=images)


def nearest(features: Float[np.ndarray, "n d"], queries: Float[np.ndarray, "m d"], *, k: int) -> Int[np.ndarray, "m k"]:
    """Returns the rows of the k nearest features by cosine for each query, nearest first; all if there are fewer.

    >>> nearest(np.eye(2, dtype=np.float32), np.array([[0.1, 1.0]], np.float32), k=2)
    array([[1, 0]], dtype=int32)
    """
    bank, k = length_one(jnp.asarray(features, jnp.float32)), min(k, len(features))
    # In batches: all cosines between 10,000 images take 400 MB.
    parts = (queries[start : start + 1024] for start in range(0, max(len(queries), 1), 1024))
    return np.concatenate([np.asarray(_nearest(bank, jnp.asarray(part, jnp.float32), k)) for part in parts])


def require_others(count: int, k: int) -> None:
    """Refuses a number of images among which an image has no other, or none are searched for.

    Raises:
      UserError: see above.
    """
    if count < 2 or k < 1:
        raise UserError(
            f"{k} nearest of {max(count - 1, 0)} other images cannot be found: give 2 images, and k of 1 or more."
        )


def left_out(nearest: Int[Array, "m k"], images: Int[Array, "m"]) -> Bool[Array, "m k"]:
    """Which of the nearest k + 1 images does not count: the query's own one, or else the last."""
    of_query = nearest == images[:, None]
    return of_query.at[:, -1].set(of_query[:, -1] | ~of_query.any(1))


@functools.partial(jax.jit, static_argnames="k")
def _nearest(bank, queries, k: int):
    return jax.lax.top_k(length_one(queries) @ bank.T, k)[1]


def _classes(
    features: np.ndarray,
    labels: np.ndarray,
    queries: np.ndarray,
    *,
    k: int,
    temperature: float,
    batch_size: int,
    images: np.ndarray | None = None,
) -> np.ndarray:
    """The votes for all queries, in batches; without that of the feature `images`, the image of the query."""
    vote = functools.partial(_vote, temperature=temperature, k=k, num_classes=int(labels.max()) + 1)
    bank, classes = length_one(jnp.asarray(features, jnp.float32)), jnp.asarray(labels)
    votes = []
    for start in range(0, len(queries), batch_size):
        batch = jnp.asarray(queries[start : start + batch_size], jnp.float32)
        batch_images = None if images is None else jnp.asarray(images[start : start + batch_size])
        votes.append(np.asarray(vote(bank, classes, batch, batch_images)))
    return np.concatenate(votes) if votes else np.zeros(0, np.int64)


@functools.partial(jax.jit, static_argnames=("k", "num_classes"))
def _vote(bank, classes, queries, images, *, temperature, k: int, num_classes: int):
    cosine, nearest = jax.lax.top_k(length_one(queries) @ bank.T, k if images is None else k + 1)
    if images is not None:
        cosine = jnp.where(left_out(nearest, images), -jnp.inf, cosine)
    # Scaled to a largest weight of 1 against overflow; a common factor does not change the winner.
    weights = jnp.exp((cosine - cosine.max(1, keepdims=True)) / temperature)
    votes = jax.nn.one_hot(classes[nearest], num_classes) * weights[:, :, None]
    return votes.sum(1).argmax(-1)


def length_one(features: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Scales features to a length of 1; zeros stay."""
    return features / jnp.maximum(jnp.linalg.norm(features, axis=1, keepdims=True), 1e-12)
