"""A short hash that identifies the weights of a network."""

import hashlib
from typing import Any

import numpy as np

from jaxprune.nn.params import variables


def fingerprint(model: Any) -> str:
    """Returns the first half of the SHA-256 of all arrays of a network and their names."""
    digest = hashlib.sha256()
    for name, variable in sorted(variables(model).items()):
        array = np.asarray(variable[...])
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
