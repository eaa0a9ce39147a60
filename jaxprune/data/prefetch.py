"""Reads batches ahead of time with Grain, in threads or worker processes, and shuts the workers down at exit."""

import atexit
import contextlib
import itertools
import os
import sys
import weakref
from collections.abc import Generator, Iterator

import numpy as np
from absl import flags

from jaxprune import search_path
from jaxprune.data.batch_reader import Batch, BatchReader

_BUFFERED = 2  # batches
_with_workers: weakref.WeakSet[Generator] = weakref.WeakSet()  # still to be closed at exit


def prefetch(reader: BatchReader, steps: range, num_workers: int) -> Iterator[Batch]:
    """Returns the batches of `steps`, which Grain reads ahead in the background.

    Threads are usually enough: decoding and resizing release the interpreter's lock, and a source in memory gains
    nothing from worker processes, each of which takes seconds to start, holds a source of its own, and has its batches
    copied. Workers pay off where an example takes much Python time and cores are idle: on two idle cores, two workers
    doubled the rate of small TFDS images and of scenes too large for memory.

    Args:
      reader: reads the batch of a step.
      steps: the steps.
      num_workers: worker processes; 0 reads in threads of this process.
    """
    batches = _read_ahead(reader, steps, num_workers)
    if num_workers:
        _with_workers.add(batches)
    return batches


def _read_ahead(reader: BatchReader, steps: range, num_workers: int) -> Generator[Batch, None, None]:
    import grain  # not needed to import jaxprune.data

    ahead = grain.MapDataset.range(steps.start, steps.stop).map(reader)
    ahead = ahead.to_iter_dataset(grain.ReadOptions(num_threads=_BUFFERED, prefetch_buffer_size=_BUFFERED))
    if not num_workers:
        yield from ahead
        return
    # Grain passes the flags on to its workers, and absl refuses to do so before they are parsed.
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    with _searching_as_here():
        ahead = iter(ahead.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=num_workers)))
        first = list(itertools.islice(ahead, 1))  # starts the workers
    for step, batch in zip(steps, itertools.chain(first, ahead), strict=False):
        # The arrays lie in memory shared with the worker, which will reuse it.
        batch = {name: np.array(column) for name, column in batch.items()}
        reader.note_replaced(step, batch)
        yield batch


@contextlib.contextmanager
def _searching_as_here() -> Iterator[None]:
    """Processes started inside search the same folders for modules as this one, and never the current folder first.

    Python puts that folder first in a process until `multiprocessing` has replaced its `sys.path` by this one's.
    """
    name = "PYTHONSAFEPATH"
    path, safe = list(sys.path), os.environ.get(name)
    sys.path[:], os.environ[name] = search_path.with_package(path), "1"
    try:
        yield
    finally:
        sys.path[:] = path
        if safe is None:
            del os.environ[name]
        else:
            os.environ[name] = safe


@atexit.register
def _stop_workers() -> None:
    # At interpreter shutdown, Grain's workers are stopped too late and print errors.
    for batches in list(_with_workers):
        batches.close()
