"""Random keys that may be None: a network in evaluation has none, and draws nothing."""

from typing import Any

import jax
from jaxtyping import PRNGKeyArray


def split_key(key: PRNGKeyArray | None, count: int = 2) -> Any:
    """Returns `count` keys made of one, or as many times None.

    >>> split_key(None)
    (None, None)
    """
    return (None,) * count if key is None else jax.random.split(key, count)


def fold_in(key: PRNGKeyArray | None, number: int) -> PRNGKeyArray | None:
    """Returns the key of a part of a network by its number, or None."""
    return None if key is None else jax.random.fold_in(key, number)
