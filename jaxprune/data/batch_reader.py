"""Reads the batch of a step: looks up its examples, decodes and transforms them, and stacks them."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from jaxprune.data import memory, rng
from jaxprune.data.broken_examples import read_or_next
from jaxprune.data.order import Order
from jaxprune.data.source import Example, Source

Batch = dict[str, np.ndarray]
Draw = Callable[[np.random.Generator], dict[str, np.ndarray]]


class Prepare(Protocol):
    """How an example becomes network input: `transform.Transform`, or the joint ones of `data.joint`."""

    def is_identity(self, shape: tuple[int, int], /) -> bool:
        """Returns whether images of `shape` are left unchanged."""
        ...

    def prepare(self, example: Example, draws: Callable[[int], np.random.Generator], shuffled: bool, /) -> Example:
        """Returns the arrays of an example that change."""
        ...


class BatchReader:
    """Maps a step to its batch, in any thread or, as it can be pickled, in a worker process.

    Args:
      source: the examples.
      order: which of them make up a step.
      transform: how an image becomes network input.
      num_threads: threads that read and transform; None for the default.
      beside: draws further arrays of an example; None for no more.
    """

    def __init__(
        self,
        source: Source,
        order: Order,
        transform: Prepare,
        num_threads: int | None,
        beside: Draw | None = None,
    ):
        self._beside = beside
        self.source, self.order, self._transform = source, order, transform
        self._num_threads = num_threads or memory.default_threads()
        self._pool = ThreadPoolExecutor(self._num_threads)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _pool=ThreadPoolExecutor(state["_num_threads"]))

    def __call__(self, step: int) -> Batch:
        """Returns the batch of a step, with `valid` if the order is a single pass."""
        epoch, indices, copies = self.order(step)
        rows = np.minimum(indices, self.order.num_examples - 1)
        source = self.source
        if isinstance(source, memory.InMemory) and self._transform.is_identity(source.image_size):
            batch = {name: column[rows] for name, column in source.columns.items()}
        else:
            shares = (np.array_split(numbers, self._num_threads) for numbers in (rows, copies))
            parts = self._pool.map(functools.partial(self._examples, epoch), *shares)
            examples = [example for part in parts for example in part]
            batch = {name: np.stack([example[name] for example in examples]) for name in examples[0]}
        if self._beside is not None:
            numbers = zip(rows, copies, strict=True)
            draws = list(self._pool.map(lambda number: self._drawn(epoch, *map(int, number)), numbers))
            batch |= {name: np.stack([arrays[name] for arrays in draws]) for name in draws[0]}
        if self.order.seed is None:
            return {**batch, "valid": batch["index"] == indices}
        return batch

    def note_replaced(self, step: int, batch: Batch) -> None:
        """Records in this process's source the broken examples of a batch that a worker process has read.

        A worker has a copy of the source, so what it adds to `broken` is not seen here.

        Args:
          step: the step.
          batch: its batch.
        """
        _, indices, _ = self.order(step)
        for index in indices[(batch["index"] != indices) & (indices < self.order.num_examples)]:
            read_or_next(self.source, int(index))

    def _examples(self, epoch: int, rows: np.ndarray, copies: np.ndarray) -> list[Example]:
        return [self._example(epoch, int(row), int(copy)) for row, copy in zip(rows, copies, strict=True)]

    def _drawn(self, epoch: int, row: int, copy: int) -> dict[str, np.ndarray]:
        draw: Any = self._beside
        return draw(rng.generator(self.order.seed or 0, rng.BESIDE, epoch, row, copy))

    def _example(self, epoch: int, row: int, copy: int) -> Example:
        example = read_or_next(self.source, row)
        seed = self.order.seed
        draws = lambda stream: rng.generator(seed or 0, stream, epoch, row, copy)
        return {**example, **self._transform.prepare(example, draws, seed is not None)}
