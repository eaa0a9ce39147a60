"""DivPrune: keep the rows that are furthest apart (Alvar et al., 2025)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxprune.reduction.parts.base import Reducer
from jaxprune.reduction.parts.cosines import Cosines
from jaxprune.reduction.parts.keep_rows import absent_rows, keep_rows, unchanged


def most_diverse(
    x: Float[Array, "b n d"], num_keep: int, *, absent: Bool[Array, "b n"] | None = None
) -> Int[Array, "b {num_keep}"]:
    """Chooses the rows of each image one by one, always the one furthest from those chosen; without gradient.

    The distance is 1 - cosine. The first row is the one whose nearest other row is furthest; ties go to the first.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [-1.0, 0.0]]])
    >>> most_diverse(x, 3).tolist()
    [[3, 0, 2]]

    Args:
      num_keep: rows to choose, at most n.
      absent: True for rows that are chosen last.

    Returns:
      The chosen rows, int32, in the order of choice.
    """
    cosines = Cosines(x)
    numbers = jnp.arange(x.shape[1], dtype=jnp.int32)
    ids = jnp.broadcast_to(numbers[None, :], x.shape[:2])
    hidden = jnp.zeros(x.shape[:2], bool) if absent is None else absent

    def to_nearest(cosine, ids):
        left_out = (ids[:, :, None] == numbers[None, None, :]) | hidden[:, None, :]
        return jnp.where(left_out, jnp.inf, 1 - cosine).min(2)

    # Below all distances, but above a row that is chosen already.
    last = -1.0
    first = jnp.where(hidden, last, cosines.by_rows(to_nearest, ids)).argmax(1).astype(jnp.int32)

    def pick(state, _):
        distance, picked = state
        distance = jnp.minimum(distance, 1 - cosines.of(picked))
        distance = jnp.where(ids == picked[:, None], -jnp.inf, distance)
        return (distance, distance.argmax(1).astype(jnp.int32)), picked

    start = jnp.where(hidden, last, jnp.inf)
    return jax.lax.scan(pick, (start, first), length=num_keep)[1].T


class DivPrune(Reducer):
    """Keeps the rows that `most_diverse` chooses among those that enter the block, in their order.

    It reads the rows only, so it works in any network and in any block; prefix tokens are not among the points.
    """

    where = "before"
    drops = True
    row_by_row = True

    def flops(self) -> int:
        """n²·d for the cosines between the n incoming rows; the choices only compare.

        In blocks (`nn.attention_kernels`) the cosines are recomputed at each choice, which is not counted.
        """
        return self.step.tokens_in**2 * self.step.embed_dim

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, num_keep = self.step.num_prefix_tokens, self.step.num_keep
        if num_keep == self.step.tokens_in:
            return unchanged(tokens, prefix)
        absent = absent_rows(tokens, self.step)
        order = most_diverse(tokens.x[:, prefix:], num_keep, absent=absent)
        return keep_rows(tokens, jnp.sort(order, axis=1), prefix)
