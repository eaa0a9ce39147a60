"""VisPruner: keep attended rows, and of the others those that are unlike each other (Zhang et al., 2024)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.nn import attention_kernels
from jaxprune.ops.blocks import by_rows
from jaxprune.reduction.parts import cosines
from jaxprune.reduction.parts.base import Reducer, Step
from jaxprune.reduction.parts.keep_rows import best, cls_scores, keep_rows, unchanged


def removals(num_rows: int, num_keep: int, at_once: int = 8) -> list[int]:
    """How many duplicates each round removes: `at_once`, at most half of the rows, until `num_keep` are left.

    >>> removals(28, 9)
    [8, 8, 3]
    """
    rounds = []
    while num_rows > num_keep:
        rounds.append(min(at_once, num_rows - num_keep, num_rows // 2))
        num_rows -= rounds[-1]
    return rounds


def without_duplicates(
    x: Float[Array, "b n d"], num_keep: int, *, at_once: int = 8, num_present: Int[Array, "b"] | None = None
) -> Int[Array, "b {num_keep}"]:
    """Removes rows that are like others, a few in each round; without gradient.

    In each round the rows alternate between two sets, A (even positions) and B. The rows of A that are most similar to
    a row of B, by cosine, leave; the next round has the rest of A, by falling similarity, and then B.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [-1.0, 0.0]]])
    >>> without_duplicates(x, 2, at_once=1).tolist()
    [[3, 1]]

    Args:
      x: rows in the order in which the first round takes them.
      num_keep: rows that are left, at least 1.
      at_once: rows that leave in a round.
      num_present: number of rows of each image, the first ones, that are present; the others leave before them.

    Returns:
      The rows that are left, int32, in the order of the last round.
    """
    x = cosines.unit(x)
    n = x.shape[1]
    all_pairs = cosines.products(x, x) if attention_kernels.row_block() is None else None
    half = (n + 1) // 2
    place_a, place_b = (jnp.arange(half, dtype=jnp.int32) * 2 + first for first in (0, 1))

    def similarity(ids_a, ids_b, hidden):
        """The largest cosine of each row of A with a row of B that is left."""
        if all_pairs is not None:
            table = jax.vmap(lambda cosine, a, b: cosine[a][:, b])(all_pairs, ids_a, ids_b)
            return jnp.where(hidden, -jnp.inf, table).max(2)
        of = jax.vmap(lambda x, ids: x[ids])
        rows_b = of(x, ids_b)
        nearest = lambda rows: jnp.where(hidden, -jnp.inf, cosines.products(rows, rows_b)).max(2)
        return by_rows(nearest, of(x, ids_a), size=attention_kernels.row_block())

    def one_round(state, _):
        order, left = state
        ids_a, ids_b = order[:, ::2], jnp.pad(order[:, 1::2], ((0, 0), (0, n % 2)))
        is_a, is_b = (places[None, :] < left[:, None] for places in (place_a, place_b))
        left_a, left_b = (inside.sum(1, dtype=jnp.int32) for inside in (is_a, is_b))
        removed = jnp.maximum(jnp.minimum(jnp.minimum(left - num_keep, left_b), at_once), 0)
        similar = jnp.where(is_a, similarity(ids_a, ids_b, ~is_b[:, None, :]), -jnp.inf)
        falling = jax.vmap(lambda ids, similar: ids[jnp.argsort(-similar, stable=True)])(ids_a, similar)
        # Where the two sets go: the rest of A, B, and behind them what has left.
        number = jnp.arange(half, dtype=jnp.int32)[None, :]
        to_a = jnp.where((number >= removed[:, None]) & (number < left_a[:, None]), number - removed[:, None], n)
        to_b = jnp.where(is_b, (left_a - removed)[:, None] + number, n)
        places = jnp.argsort(jnp.concatenate([to_a, to_b], axis=1), axis=1, stable=True)[:, :n]
        order = jax.vmap(lambda ids, places: ids[places])(jnp.concatenate([falling, ids_b], axis=1), places)
        return (order, left - removed), None

    order = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[None, :], x.shape[:2])
    left = jnp.full(x.shape[:1], n, jnp.int32) if num_present is None else num_present
    rounds = len(removals(n, num_keep, at_once))
    (order, _), _ = jax.lax.scan(one_round, (order, left), length=rounds)
    return order[:, :num_keep]


class VisPruner(Reducer):
    """Keeps the rows of most CLS attention in the block before, and of the others those left `without_duplicates`.

    The others are taken by falling attention. All kept rows stay in their order.

    Works in networks without a CLS token too (SigLIP): there the ranking is the mean attention that a row receives.

    Args:
      important: share of the kept rows that is chosen by attention; the count is truncated.
      at_once: duplicates that leave in a round.
    """

    where = "before"
    drops = True
    needs = frozenset({"cls_attn"})

    def __init__(self, step: Step, *, important: float | int = 0.5, at_once: int = 8, rngs: nnx.Rngs | None = None):
        super().__init__(step)
        if not 0 <= important <= 1:
            raise UserError(f"important={important} is not a share of the kept rows: use 0 to 1, such as 0.5.")
        if at_once < 1:
            raise UserError(f"at_once={at_once}: vispruner has to remove at least 1 duplicate in a round.")
        self.num_important, self.at_once = int(step.num_keep * important), at_once

    def flops(self) -> int:
        """m²·d for the cosines of the m rows that are not kept by attention; the rounds only compare.

        In blocks (`nn.attention_kernels`) the cosines are recomputed in each round, which is not counted.
        """
        if self.num_important == self.step.num_keep:
            return 0
        return (self.step.tokens_in - self.num_important) ** 2 * self.step.embed_dim

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, num_keep = self.step.num_prefix_tokens, self.step.num_keep
        n = tokens.x.shape[1] - prefix  # in training more rows may arrive than the plan says
        if num_keep == n:
            return unchanged(tokens, prefix)
        scores, present = cls_scores(attended, prefix), None
        if self.step.has_absent:
            is_present = tokens.policy[:, prefix:] > 0
            scores = jnp.where(is_present, scores, -1)
            present = jnp.maximum(is_present.sum(1) - self.num_important, 0)
        falling = best(scores, n)
        ids, rest = falling[:, : self.num_important], falling[:, self.num_important :]
        if self.num_important < num_keep:
            x = jax.vmap(lambda x, ids: x[ids])(tokens.x[:, prefix:], rest)
            num_different = num_keep - self.num_important
            different = without_duplicates(x, num_different, at_once=self.at_once, num_present=present)
            ids = jnp.concatenate([ids, jax.vmap(lambda rest, ids: rest[ids])(rest, different)], axis=1)
        return keep_rows(tokens, jnp.sort(ids, axis=1), prefix)
