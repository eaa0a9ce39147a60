"""NumPy's random numbers of any seed: its own generators refuse negative ones, which JAX takes."""

import operator

import numpy as np


def host_generator(*seeds: int | np.integer) -> np.random.Generator:
    """Returns NumPy's generator of a seed, or of several numbers together.

    >>> float(host_generator(-1).random()) == float(host_generator(0).random())
    False
    """
    numbers = [operator.index(seed) % 2**64 for seed in seeds]
    return np.random.default_rng(numbers if len(numbers) > 1 else numbers[0])
