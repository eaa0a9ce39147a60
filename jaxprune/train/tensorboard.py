"""TensorBoard files, written in this thread; errors disable them, but never end the run."""

import functools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_log = logging.getLogger(__name__)


def _harmless(method: Callable) -> Callable:
    @functools.wraps(method)
    def call(self: "TensorBoard", *arguments: Any) -> None:
        if self._failed:
            return
        try:
            method(self, *arguments)
        # Only monitoring: errors can be a full disk, a deleted directory, a changed library.
        except Exception as error:
            self._failed = True
            _log.warning("No more TensorBoard files in %s: %s. The run continues.", self._directory, error)

    return call


class TensorBoard:
    """Writes scalars, pictures and texts; the file is created by the first of them.

    Args:
      directory: directory of the event files.
      purge_step: hide records of earlier files from this step on; None hides nothing.
    """

    def __init__(self, directory: Path, purge_step: int | None = None):
        self._directory, self._purge_step = directory, purge_step
        self._events: Any = None
        self._failed = False

    @_harmless
    def scalar(self, name: str, value: float, step: int) -> None:
        """Adds a number."""
        from tensorboardX import summary

        self._add(step, summary=summary.scalar(name, value))

    @_harmless
    def image(self, name: str, image: np.ndarray, step: int) -> None:
        """Adds a picture, uint8 (h, w, 3)."""
        from tensorboardX import summary

        self._add(step, summary=summary.image(name, image, dataformats="HWC"))

    @_harmless
    def flush(self) -> None:
        """Flushes everything written so far to the operating system."""
        if self._events is not None:
            self._events.flush()

    @_harmless
    def close(self) -> None:
        """Closes the file."""
        if self._events is not None:
            self._events.close()

    def _add(self, step: int, **content: Any) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2 as made  # by protobuf: its classes are not in the file's text

        event_pb2: Any = made

        if self._events is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            # Not `SummaryWriter`: its thread dies at the first error, and later writes then block forever.
            self._events = EventsWriter(str(self._directory / "events"))
            if self._purge_step is not None:
                start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
                self._write(event_pb2.Event(session_log=start), self._purge_step)
        self._write(event_pb2.Event(**content), step)

    def _write(self, event: Any, step: int) -> None:
        event.wall_time, event.step = time.time(), int(step)
        self._events.write_event(event)
