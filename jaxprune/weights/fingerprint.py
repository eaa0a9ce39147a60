"""Short hashes that identify the weights of a network, and arrays."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxprune.nn.params import variables


def fingerprint(model: Any) -> str:
    """Returns the first half of the SHA-256 of all arrays of a network and their names."""
    return digest_of((name, np.asarray(variable[...])) for name, variable in sorted(variables(model).items()))


def digest_of(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """Returns the first half of the SHA-256 of named arrays, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, array in arrays:
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
