"""Images on their way through an engine: those that stay at an exit wait, with their state, before the next segment."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

from jaxprune.dynamic.exit_policy import confidence

if TYPE_CHECKING:
    from jaxprune.dynamic.engine import Engine

Answer = tuple[int, np.ndarray, int]


class _Waiting(NamedTuple):
    """Rows before a segment.

    Attributes:
      ids: numbers of their images.
      places: where in the arrays before the segment their states are; before the first, the pixels themselves.
      logits: of the last exit; without columns before the first segment.
    """

    ids: np.ndarray
    places: np.ndarray
    logits: np.ndarray

    def parted(self, count: int) -> tuple["_Waiting", "_Waiting"]:
        """The first rows, and the others."""
        return _Waiting(*(field[:count] for field in self)), _Waiting(*(field[count:] for field in self))

    def before(self, rows: "_Waiting") -> "_Waiting":
        """These rows, and further ones behind them."""
        return _Waiting(*(np.concatenate(pair) for pair in zip(self, rows, strict=True))) if len(self.ids) else rows


class Stream:
    """The images that are inside an engine; for one thread at a time.

    The states of the rows before a segment are places in arrays of one size, on the device. A program reads the rows
    that it computes from there, and writes all of them to free places before the next segment, so that every shape is
    known ahead; the places of those that left are free again.

    Args:
      engine: whose programs and thresholds are used.
    """

    def __init__(self, engine: "Engine"):
        self._engine = engine
        self._queues: list[_Waiting | None] = [None] * engine.exits
        self._free: list[np.ndarray] = []
        self._rooms: list[Any] = []
        self._spec: Any = None

    def __len__(self) -> int:
        """The number of images that wait."""
        return sum(len(queue.ids) for queue in self._queues if queue is not None)

    def advance(
        self, ids: Int[np.ndarray, "n"], images: UInt8[np.ndarray, "n *sides c"], *, flush: bool
    ) -> Iterator[Answer]:
        """Takes images in, and yields (number, logits, exit) of those that leave, as soon as each is known.

        Args:
          ids: their numbers.
          flush: whether all of them, and all that wait, leave now; otherwise only full batches go on.
        """
        largest = self._engine.buckets[-1]
        for start in range(0, len(ids), largest):
            part = slice(start, start + largest)
            self._enter(ids[part], images[part])
            yield from self._drain(flush=flush)
        yield from self._drain(flush=flush)

    def finish(self) -> Iterator[Answer]:
        """Yields what is left, and hands the arrays back to the engine."""
        yield from self._drain(flush=True)
        if self._rooms:
            self._engine.give_back(self._spec, self._rooms)
            self._rooms = []

    def _enter(self, ids: np.ndarray, images: np.ndarray) -> None:
        if not self._rooms:
            self._spec = (images.shape[1:], images.dtype)
            self._rooms = self._engine.rooms(self._spec)
            self._free = [np.arange(self._engine.capacity) for _ in self._rooms]
        entered = _Waiting(ids, images, np.zeros((len(ids), 0), np.float32))
        queue = self._queues[0]
        self._queues[0] = entered if queue is None else queue.before(entered)

    def _drain(self, *, flush: bool) -> Iterator[Answer]:
        while (segment := self._next(flush)) is not None:
            queue = self._queues[segment]
            assert queue is not None
            rows, self._queues[segment] = queue.parted(self._engine.batch_of(len(queue.ids)))
            yield from self._run(segment, rows)

    def _next(self, flush: bool) -> int | None:
        """The last segment with a full batch, or else the first with any row, if all go on."""
        counts = [0 if queue is None else len(queue.ids) for queue in self._queues]
        full = [segment for segment, count in enumerate(counts) if count >= self._engine.buckets[-1]]
        filled = [segment for segment, count in enumerate(counts) if count]
        if full:
            return full[-1]
        return filled[0] if flush and filled else None

    def _run(self, segment: int, rows: _Waiting) -> Iterator[Answer]:
        count, is_last = len(rows.ids), segment == len(self._queues) - 1
        places = np.zeros(0, int) if is_last else self._free[segment + 1][:count]
        source = rows.places if segment == 0 else self._rooms[segment]
        room = None if is_last else self._rooms[segment + 1]
        room, logits = self._engine.run(segment, source, None if segment == 0 else rows.places, room, places)
        history = [logits] if segment == 0 else [rows.logits, logits]
        sure = confidence(np.stack(history), self._engine.rule)[-1]
        leaving = np.ones(count, bool) if is_last else sure >= self._engine.thresholds[segment]
        if segment:
            self._free[segment] = np.concatenate([self._free[segment], rows.places])
        if not is_last:
            self._rooms[segment + 1] = room
            self._free[segment + 1] = np.concatenate([self._free[segment + 1][count:], places[leaving]])
            stays = _Waiting(rows.ids[~leaving], places[~leaving], logits[~leaving])
            queue = self._queues[segment + 1]
            self._queues[segment + 1] = stays if queue is None else queue.before(stays)
        yield from ((int(rows.ids[row]), logits[row], segment) for row in np.flatnonzero(leaving))
