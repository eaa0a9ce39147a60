"""Reads batches ahead of time with Grain, in threads or worker processes, and shuts the workers down at exit."""

import atexit
import weakref
from collections.abc import Generator, Iterator

import numpy as np
from absl import flags

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
    ahead = ahead.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=num_workers))
    for step, batch in zip(steps, ahead, strict=False):
        # The arrays lie in memory shared with the worker, which will reuse it.
        batch = {name: np.array(column) for name, column in batch.items()}
        reader.note_replaced(step, batch)
        yield batch


@atexit.register
def _stop_workers() -> None:
    # At interpreter shutdown, Grain's workers are stopped too late and print errors.
    for batches in list(_with_workers):
        batches.close()
