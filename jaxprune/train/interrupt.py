"""Signals: stopping a run between two steps, and ending long operations between steps early.

Operations that end early are repeated when the run resumes.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

import jax

_questions: list[Callable[[], bool]] = []


class Interrupted(Exception):
    """Raised by `check` when the run should stop."""


@contextmanager
def interruptible(is_wanted: Callable[[], bool]) -> Iterator[None]:
    """Inside the `with` block, `check` calls `is_wanted` to ask whether to stop."""
    _questions.append(is_wanted)
    try:
        yield
    finally:
        _questions.pop()


@contextmanager
def ending_at_ctrl_c() -> Iterator[None]:
    """Ctrl-C ends the `with` block by a `KeyboardInterrupt`, or by `Interrupted` from the next `check`.

    Python drops an exception that is raised in a callback of the garbage collector, where compiling spends some time;
    then the next `check` ends the block. Call it from the main thread. Training temporarily sets its own handlers.
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
    """Raises `Interrupted` inside `interruptible`, if the run should stop; called between batches."""
    if _questions and _questions[-1]():
        raise Interrupted


class StopSignal:
    """Records the first SIGTERM or SIGINT; a second SIGINT interrupts at once. Handlers are restored at the end."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Only the main thread may set handlers; in other threads the owner of the process handles signals.
        if threading.current_thread() is threading.main_thread():
            self._previous = {s: signal.signal(s, self._note) for s in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Evaluations in the `with` block end at the first signal."""
        before = self.received
        # Several processes must end an evaluation at the same batch, so there it is completed.
        is_wanted = lambda: self.received != before and jax.process_count() == 1
        with interruptible(is_wanted):
            yield

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
