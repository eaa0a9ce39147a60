"""Non-maximum suppression with a fixed number of results; for one image, to be mapped with `vmap`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxprune.ops.boxes import areas


def nms(
    boxes: Float[Array, "n 4"],
    scores: Float[Array, "n"],
    *,
    threshold: float,
    num: int,
    valid: Bool[Array, "n"] | None = None,
    groups: Int[Array, "n"] | None = None,
) -> tuple[Int[Array, "k"], Bool[Array, "k"]]:
    """Takes the box of the highest score, drops those that overlap it, and so on; the first `num` boxes taken.

    A box is dropped if its overlap with a taken one of its group is strictly greater than the threshold. Of equal
    scores, the first box comes first.

    >>> import jax.numpy as jnp
    >>> boxes = jnp.array([[0.0, 0, 4, 4], [0, 0, 4, 3], [8, 8, 9, 9]])
    >>> [part.tolist() for part in nms(boxes, jnp.array([0.5, 0.9, 0.1]), threshold=0.5, num=3)]
    [[1, 2, 0], [True, True, False]]

    Args:
      boxes: of any order.
      threshold: the largest overlap (intersection over union) that two kept boxes of a group may have.
      num: number of places in the result.
      valid: boxes that take part; all by default.
      groups: the level or class of each box; by default all are in one group.

    Returns:
      (numbers of the boxes by falling score, which places are taken).
    """
    if not len(scores):
        return jnp.zeros((num,), jnp.int32), jnp.zeros((num,), bool)
    boxes, scores = boxes.astype(jnp.float32), scores.astype(jnp.float32)
    alive = jnp.ones(scores.shape, bool) if valid is None else valid
    area = areas(boxes)

    def take(place: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        alive, ids, places = state
        # The first of the largest scores.
        best = jnp.argmax(jnp.where(alive, scores, -jnp.inf)).astype(jnp.int32)
        exists = alive.any()
        low, high = jnp.maximum(boxes[best, None, :2], boxes[:, :2]), jnp.minimum(boxes[best, None, 2:], boxes[:, 2:])
        common = jnp.prod(jnp.maximum(high - low, 0.0), axis=-1)
        dropped = common > threshold * (area[best] + area - common)
        if groups is not None:
            dropped &= groups == groups[best]
        left = alive & ~dropped & (jnp.arange(alive.size) != best)
        alive = jnp.where(exists, left, alive)
        return alive, ids.at[place].set(jnp.where(exists, best, 0)), places.at[place].set(exists)

    start = (alive, jnp.zeros((num,), jnp.int32), jnp.zeros((num,), bool))
    _, ids, places = jax.lax.fori_loop(0, num, take, start)
    return ids, places
