"""What is known of an array while a program is traced."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def on_host(array: Any) -> np.ndarray | None:
    """The values of an array as NumPy; None for an argument of a program that is being traced.

    >>> on_host([3, 4])
    array([3, 4])
    """
    return None if isinstance(array, Tracer) else np.asarray(array)


def numpy_of(value: Any) -> Any:
    """The module NumPy for values on the host, where float64 stays; `jax.numpy` for traced and device arrays.

    >>> numpy_of(0.5).__name__, numpy_of(jnp.ones(2)).__name__
    ('numpy', 'jax.numpy')
    """
    return jnp if isinstance(value, jax.Array) else np


RESAMPLING = "resampling"  # the `jax.named_scope` of resizing and pooling, which counts of FLOPs leave out
