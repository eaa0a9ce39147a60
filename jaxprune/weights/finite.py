"""Checks of arrays that are used as weights."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxprune.errors import UserError

_NAMES_SHOWN = 8


def is_real(array: Any) -> bool:
    """Whether an array has a real or bool dtype: no text, no objects, no complex numbers."""
    return any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))


def require_finite(arrays: Mapping[str, Any], source: str) -> None:
    """Checks that a network can compute with its weights.

    Args:
      arrays: {name: array of real numbers}.
      source: name of the weights in the error message.

    Raises:
      UserError: numbers are infinite or NaN; their arrays are named.
    """
    bad = sorted(name for name, array in arrays.items() if not np.isfinite(np.asarray(array)).all())
    if bad:
        rest = f" and {len(bad) - _NAMES_SHOWN} more" if len(bad) > _NAMES_SHOWN else ""
        raise UserError(
            f"{source}: tensors hold numbers that are not finite: {', '.join(bad[:_NAMES_SHOWN])}{rest}. Their "
            "training diverged, or the file is damaged: take an earlier checkpoint, or fetch it again."
        )
