"""A short number that identifies the weights of a network."""

import zlib
from typing import Any

import numpy as np

from jaxprune.nn.params import variables


def fingerprint(model: Any) -> str:
    """Returns the CRC-32 of all arrays of a network."""
    crc = 0
    for name, variable in sorted(variables(model).items()):
        crc = zlib.crc32(np.asarray(variable[...]).tobytes(), zlib.crc32(name.encode(), crc))
    return f"{crc:08x}"
