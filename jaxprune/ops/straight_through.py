"""Choices with the gradient of a softmax (Bengio et al., 2013; Jang et al., 2017)."""

import jax
from jaxtyping import Array, Float


def straight_through(logits: Float[Array, "*places c"]) -> Float[Array, "*places c"]:
    """One-hot of the largest logit, exactly 0 and 1, with the gradient of the softmax."""
    soft = jax.nn.softmax(logits, axis=-1)
    hard = jax.nn.one_hot(logits.argmax(-1), logits.shape[-1])
    return hard + (soft - jax.lax.stop_gradient(soft))
