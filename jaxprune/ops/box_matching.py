"""Which object a box stands for, and which boxes a loss samples; for one image, to be mapped with `vmap`."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

POSITIVE, NEGATIVE, IGNORED = 1, 0, -1


class Matches(NamedTuple):
    """What boxes stand for.

    Attributes:
      objects: the object that each box overlaps most, the first of equal ones; 0 without objects.
      labels: 1 = positive, 0 = negative, -1 = neither.
    """

    objects: Int[Array, "n"]
    labels: Int[Array, "n"]


def match(
    overlaps: Float[Array, "m n"],
    valid: Bool[Array, "m"],
    *,
    low: float,
    high: float,
    low_quality: bool = False,
) -> Matches:
    """Matches boxes to objects by their overlap, as detectron2 does.

    >>> import jax.numpy as jnp
    >>> overlaps = jnp.array([[0.8, 0.4, 0.1], [0.0, 0.35, 0.2]])
    >>> match(overlaps, jnp.array([True, True]), low=0.3, high=0.7, low_quality=True).labels.tolist()
    [1, 1, 0]

    Args:
      overlaps: intersection over union of every object with every box.
      valid: which objects exist; the others are padding.
      low, high: a box is positive from a largest overlap of `high` on, and negative below `low`.
      low_quality: whether the boxes with an object's largest overlap are positive too, all that equal it exactly. They
        keep the object that they overlap most themselves.
    """
    among_valid = jnp.where(valid[:, None], overlaps, -1.0)
    objects, best = among_valid.argmax(0).astype(jnp.int32), among_valid.max(0)
    labels = jnp.where(best >= high, POSITIVE, jnp.where(best >= low, IGNORED, NEGATIVE))
    if low_quality:
        largest = among_valid.max(1, keepdims=True)
        labels = jnp.where(((among_valid == largest) & valid[:, None]).any(0), POSITIVE, labels)
    return Matches(objects, labels.astype(jnp.int32))


class Sampled(NamedTuple):
    """Which boxes a loss reads.

    Attributes:
      positive, negative: whether a box was drawn as one.
    """

    positive: Bool[Array, "n"]
    negative: Bool[Array, "n"]


def sample(labels: Int[Array, "n"], keys: Float[Array, "n"], num: int, positive_fraction: float) -> Sampled:
    """Draws at most `num` boxes, at most int(num · positive_fraction) of them positive, the rest negative.

    Args:
      labels: see `Matches`.
      keys: random numbers; of all candidates of a kind those with the smallest ones are drawn.
    """
    positives, negatives = labels == POSITIVE, labels == NEGATIVE
    most = jnp.minimum(int(num * positive_fraction), positives.sum())
    positive = _smallest(keys, positives, most)
    return Sampled(positive, _smallest(keys, negatives, jnp.minimum(num - most, negatives.sum())))


def _smallest(keys: Array, candidates: Array, count: Array) -> Array:
    """Marks the `count` smallest keys among some; equal keys in order."""
    order = jnp.argsort(jnp.where(candidates, keys, jnp.inf), stable=True)
    rank = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=order.dtype))
    return candidates & (rank < count)


def drawn_first(sampled: Sampled, keys: Float[Array, "n"], num: int) -> tuple[Int[Array, "k"], Bool[Array, "k"]]:
    """The numbers of drawn boxes in `num` places: positives, then negatives, each with the smallest keys first.

    Returns:
      (numbers, which places are taken).
    """
    order = jnp.argsort(keys, stable=True)
    rank = jnp.where(sampled.positive, 0, jnp.where(sampled.negative, 1, 2))
    ids = order[jnp.argsort(rank[order], stable=True)].astype(jnp.int32)
    ids = jnp.pad(ids, (0, max(num - ids.size, 0)))[:num]
    valid_places = jnp.arange(num, dtype=jnp.int32) < sampled.positive.sum() + sampled.negative.sum()
    return jnp.where(valid_places, ids, 0), valid_places
