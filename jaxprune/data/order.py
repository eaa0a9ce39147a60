"""The order of examples: the examples of each step's batch, and the part that this process reads."""

import dataclasses
import functools

import numpy as np

from jaxprune.data import rng
from jaxprune.errors import UserError


@dataclasses.dataclass(frozen=True)
class Order:
    """Maps a step to the examples of its batch.

    Attributes:
      num_examples: number of examples of the source.
      batch_size: global batch size, over all processes.
      part: the rows of every batch that this process reads.
      seed: seed of the shuffling, which differs in every epoch of an endless stream. None: a single pass in source
        order.
      repeats: how many times in a row each example comes (repeated augmentation).
    """

    num_examples: int
    batch_size: int
    part: slice
    seed: int | None
    repeats: int = 1

    @classmethod
    def of_process(
        cls,
        num_examples: int,
        batch_size: int,
        process_index: int,
        process_count: int,
        seed: int | None,
        repeats: int = 1,
    ) -> "Order":
        """Returns the order for process `process_index` of `process_count`, which share every batch evenly.

        Raises:
          UserError: `repeats` is less than 1, the seed is not a 64-bit number, or the batch cannot be divided evenly.
        """
        seed = None if seed is None else rng.checked_seed(seed)
        if repeats < 1:
            raise UserError(f"repeats={repeats} must be at least 1; 1 is without repeated augmentation.")
        if batch_size < 1 or batch_size % process_count or not 0 <= process_index < process_count:
            raise UserError(
                f"batch_size={batch_size} cannot be shared evenly by process_count={process_count} processes, of which "
                f"this is process_index={process_index}."
            )
        share = batch_size // process_count
        part = slice(process_index * share, (process_index + 1) * share)
        return cls(num_examples, batch_size, part, seed, repeats)

    def __call__(self, step: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Returns the epoch, the indices of this process's examples, and which repetition of its example each one is.

        In a single pass, the indices of the last batch may exceed the number of examples.
        """
        if self.seed is None:
            rows = np.arange(step * self.batch_size, (step + 1) * self.batch_size)[self.part]
            return 0, rows, np.zeros_like(rows)
        epoch, batch = divmod(step, self.num_examples // self.batch_size)
        positions = np.arange(batch * self.batch_size, (batch + 1) * self.batch_size)[self.part]
        shuffled = _permutation(self.seed, epoch, self.num_examples)
        return epoch, repeated(shuffled, positions, self.repeats), positions % self.repeats


def repeated(shuffled: np.ndarray, positions: np.ndarray, repeats: int) -> np.ndarray:
    """Returns the examples at `positions` of an epoch in which each example comes several times in a row.

    Args:
      shuffled: the epoch's order of examples, without repetition.
      positions: positions in the epoch, counting repetitions.
      repeats: how many times each example comes.
    """
    return shuffled[positions // repeats]


@functools.lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    return rng.generator(seed, rng.SHUFFLE, epoch, 0).permutation(num_examples)
