"""Random numbers that depend only on a seed, a purpose, an epoch and an example."""

import operator

import numpy as np

from jaxprune.errors import UserError

SHUFFLE, CROP, AUGMENT, SAMPLE, CAMERA, BESIDE = range(6)  # independent streams of random numbers, one per purpose


def generator(seed: int, stream: int, epoch: int, index: int, copy: int = 0) -> np.random.Generator:
    """Returns the generator of one example, independent of those of all other examples.

    Args:
      seed: the seed of the run.
      stream: one of `SHUFFLE`, `CROP`, `AUGMENT`, `SAMPLE`, `CAMERA` and `BESIDE`.
      epoch: number of the epoch.
      index: number of the example.
      copy: which repetition of the example within the epoch.
    """
    # As an array: NumPy would convert a list with a number of 2**63 or more to floats, and map negative seeds to one.
    key = np.array([seed % 2**64, stream], np.uint64)
    # Philox is counter-based: no random numbers of preceding examples have to be generated first.
    return np.random.Generator(np.random.Philox(key=key, counter=[0, copy, epoch, index]))


def checked_seed(seed: int) -> int:
    """Returns a seed as a Python int.

    Raises:
      UserError: it is not a whole number, or does not fit in 64 signed bits.
    """
    try:
        number = operator.index(seed)
    except TypeError:
        number = None
    if number is None or not -(2**63) <= number < 2**63:
        raise UserError(f"seed={seed!r} is not a whole number from -2**63 to 2**63 - 1: choose another seed.")
    return number
