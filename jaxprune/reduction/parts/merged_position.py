"""The position of a merged token, by `At.position`: the mean of its tokens, or that of the token kept."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune.nn.tokens import Tokens
from jaxprune.reduction.parts.base import Step


def merged_position(
    tokens: Tokens, shares: Float[Array, "b k n"], kept: Int[Array, "b k"] | None, step: Step
) -> Float[Array, "b k c"]:
    """The positions of merged tokens, by `step.position`.

    Args:
      shares: weight of each incoming token (last axis) in each outgoing one; any scale.
      kept: for each outgoing token, the incoming one whose position it takes; None uses the mean.
    """
    position = tokens.position[:, step.num_prefix_tokens :]
    weights = shares / jnp.maximum(shares.sum(2, keepdims=True), jnp.finfo(shares.dtype).tiny)
    of_kept = None if kept is None else jax.vmap(lambda position, ids: position[ids])(position, jnp.maximum(kept, 0))
    return position_by_rule(step.position, weights @ position, of_kept)


def position_by_rule(
    rule: str, mean: Float[Array, "b k c"], kept: Float[Array, "b k c"] | None
) -> Float[Array, "b k c"]:
    """The positions of the tokens kept if the rule is "kept" and there are any; otherwise the mean positions."""
    return kept if rule == "kept" and kept is not None else mean
