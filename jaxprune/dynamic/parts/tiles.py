"""The tiles that LAUDNet's latency predictor tries for an operation."""

import math
from typing import Any

import numpy as np

TILES = 8  # powers of two, fractions and small numbers that are tried for the side of a tile


def tile_sizes(length: int) -> list[int]:
    """The numbers that are tried for the side of a tile along a length."""
    powers = {2**power for power in range(TILES) if 2**power <= 2 * length}
    least = min(length, TILES)
    return sorted(powers | {math.ceil(length / parts) for parts in range(1, least)} | set(range(2, least)))


def grid(*sizes: list[int]) -> list[np.ndarray]:
    """All combinations, one flat array a size."""
    return [axis.ravel() for axis in np.meshgrid(*(np.array(size, float) for size in sizes), indexing="ij")]


def ceil_divide(numerator: Any, denominator: Any) -> Any:
    """How many pieces of a size cover a length."""
    return np.ceil(numerator / denominator)


def num_patches(side: int, granularity: int) -> int:
    """How many patches cover a square map."""
    return math.ceil(side / granularity) ** 2
