"""Dropout: elements are set to zero at random, and the others scaled up, so that the mean stays."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def apply_dropout(
    x: Float[Array, "..."], rate: float, key: PRNGKeyArray | None, *, shared_axes: Sequence[int] = ()
) -> Float[Array, "..."]:
    """Sets elements to zero with probability `rate`, and scales the others by 1 / (1 - rate).

    Without a key (evaluation) nothing is dropped.

    >>> apply_dropout(jnp.ones(4), 0.5, None).tolist()
    [1.0, 1.0, 1.0, 1.0]

    Args:
      shared_axes: elements along these are dropped together, such as the places of a channel.
    """
    if key is None or not rate:
        return x
    shape = tuple(1 if axis in shared_axes else size for axis, size in enumerate(x.shape))
    return jnp.where(jax.random.bernoulli(key, 1 - rate, shape), x / (1 - rate), jnp.zeros((), x.dtype))
