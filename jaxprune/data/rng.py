"""Random numbers that depend only on a seed, a purpose, an epoch and an example."""

import numpy as np

SHUFFLE, CROP, AUGMENT = 0, 1, 2  # independent streams of random numbers, one per purpose


def generator(seed: int, stream: int, epoch: int, index: int, copy: int = 0) -> np.random.Generator:
    """Returns the generator of one example, independent of those of all other examples.

    Args:
      seed: The seed of the run.
      stream: One of `SHUFFLE`, `CROP` and `AUGMENT`.
      epoch: Number of the epoch.
      index: Number of the example.
      copy: Which repetition of the example within the epoch.
    """
    # Philox is counter-based: no random numbers of preceding examples have to be generated first.
    return np.random.Generator(np.random.Philox(key=[seed % 2**64, stream], counter=[0, copy, epoch, index]))
