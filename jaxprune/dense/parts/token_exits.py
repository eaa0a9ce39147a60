"""Which tokens leave a network between its heads: by confidence (DToP, Tang et al., 2023), or by given scores."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxprune.nn.tokens import Tokens
from jaxprune.reduction.parts.keep_rows import keep_rows


def confident(
    scores: Float[Array, "b k n"], present: Bool[Array, "b n"], threshold: float, keep_per_class: int
) -> Bool[Array, "b n"]:
    """The tokens that are sure of their class, without the best of each class, which stay as context.

    >>> scores = jnp.array([[[0.9, 0.8, 0.2, 0.7], [0.1, 0.1, 0.6, 0.1]]])
    >>> confident(scores, jnp.array([[True, True, True, False]]), 0.5, 1).tolist()
    [[False, True, False, False]]

    Args:
      scores: of each class, by token.
      present: tokens that have not left yet; only these count.
      threshold: tokens whose best score is above it can leave.
      keep_per_class: number of tokens of each predicted class that stay, those with the best scores; all if there are
        fewer.
    """
    best, classes = scores.max(1), scores.argmax(1)

    def one(best: Array, classes: Array, present: Array) -> Array:
        number = jnp.where(present, classes, scores.shape[1])
        order = jnp.lexsort((jnp.where(present, -best, jnp.inf), number))
        ordered, places = number[order], jnp.arange(order.shape[0])
        begins = jnp.concatenate([jnp.ones((1,), bool), ordered[1:] != ordered[:-1]])
        rank = places - jax.lax.cummax(jnp.where(begins, places, 0))
        spare = jnp.zeros(order.shape, bool).at[order].set(rank >= keep_per_class)
        return present & spare & (best > threshold)

    return jax.vmap(one)(*jax.lax.stop_gradient((best, classes, present)))


def lowest(
    scores: Float[Array, "b p"], assign: Int[Array, "b p"], present: Bool[Array, "b n"], num_keep: int
) -> Bool[Array, "b n"]:
    """The present tokens that are not among the `num_keep` with the highest scores.

    Args:
      scores: of each patch; a token that holds several has the highest of them.
      assign: the token of each patch, -1 = none.
    """

    def one(scores: Array, assign: Array, present: Array) -> Array:
        rows = present.shape[0]
        best = jax.ops.segment_max(scores, jnp.where(assign < 0, rows, assign), rows + 1)[:rows]
        order = jnp.argsort(jnp.where(present, -best, jnp.inf), stable=True)
        return present & jnp.ones(rows, bool).at[order[:num_keep]].set(False)

    return jax.vmap(one)(jax.lax.stop_gradient(scores), assign, present)


def without(tokens: Tokens, leaving: Bool[Array, "b n"], num_prefix_tokens: int) -> Tokens:
    """Tokens of which some rows become absent; they stay in their places."""
    stays = jnp.pad(~leaving, ((0, 0), (num_prefix_tokens, 0)), constant_values=True)
    return tokens._replace(policy=tokens.policy * stays, size=tokens.size * stays)


def left_aligned(tokens: Tokens, count: int, num_prefix_tokens: int) -> Tokens:
    """The first `count` rows with the present ones in front; as many as are present, or more."""
    present = tokens.policy[:, num_prefix_tokens:] > 0
    ids = jnp.argsort(~present, axis=1, stable=True)[:, :count].astype(jnp.int32)
    return keep_rows(tokens, ids, num_prefix_tokens)[0]
