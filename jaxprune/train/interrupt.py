"""Signals: how a run stops between two steps, and how what runs long between them ends early.

What ends early is done again when the run goes on.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

import jax

_wanted: list[Callable[[], bool]] = []


class Interrupted(Exception):
    """Raised by `check`, once the run is to stop."""


@contextmanager
def interruptible(wanted: Callable[[], bool]) -> Iterator[None]:
    """While the `with` block runs, `check` asks whether a stop is wanted."""
    _wanted.append(wanted)
    try:
        yield
    finally:
        _wanted.pop()


@contextmanager
def ending_at_ctrl_c() -> Iterator[None]:
    """Ctrl-C ends the `with` block by a `KeyboardInterrupt`, or by `Interrupted` from the next `check`.

    Python drops an exception that is raised in a callback of the garbage collector, where compiling spends some time;
    then the next `check` ends the block. Call it from the main thread. Training sets handlers of its own meanwhile.
    """
    pressed = False

    def note(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        with interruptible(lambda: pressed):
            yield
    finally:
        signal.signal(signal.SIGINT, before)


def check() -> None:
    """Raises `Interrupted` inside `interruptible`, if the run is to stop; called between two batches."""
    if _wanted and _wanted[-1]():
        raise Interrupted


class StopSignal:
    """Notes the first SIGTERM or SIGINT; a second SIGINT interrupts at once. Handlers are put back at the end."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Only the main thread may set handlers; elsewhere whoever owns the process decides.
        if threading.current_thread() is threading.main_thread():
            self._previous = {s: signal.signal(s, self._note) for s in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Evaluations in the `with` block end at the first signal that comes while it runs."""
        before = self.received
        # Several processes have to end an evaluation at the same batch: there it runs to its end.
        wanted = lambda: self.received != before and jax.process_count() == 1
        with interruptible(wanted):
            yield

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
