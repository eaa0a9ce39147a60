"""Signals: stopping a run between two steps, and ending long operations between steps early.

Operations that end early are repeated when the run resumes.
"""

import contextlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

import jax

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_AGAIN = 0.05  # seconds after which an exception that Python dropped is raised again

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


class Ending:
    """The signal that ends a block.

    Attributes:
      number: of the first one, or None.
    """

    number: int | None = None

    @property
    def status(self) -> int:
        """The shell's exit status for a program that the signal ended."""
        return 128 + (self.number or signal.SIGINT)


@contextmanager
def ending_at_signals() -> Iterator[Ending]:
    """Ctrl-C, SIGTERM and SIGHUP end the `with` block by `KeyboardInterrupt`, or by `Interrupted` at the next `check`.

    If something swallowed the exception, it is raised again at the end of the block at the latest. Python itself drops
    one in a callback of the garbage collector, where compiling spends some time; it is raised again a moment later.
    Call it from the main thread. Training temporarily sets its own handlers.
    """
    ending = Ending()
    unraisable = sys.unraisablehook

    def note(number: int, frame: object) -> None:
        if number != signal.SIGALRM:
            ending.number = ending.number or number
        if number == signal.SIGHUP:
            _leave_terminal()
        raise KeyboardInterrupt

    def again(dropped: Any) -> None:
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            unraisable(dropped)
        elif threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)

    before = {number: signal.signal(number, note) for number in (*_heeded(), signal.SIGALRM)}
    sys.unraisablehook = again
    try:
        with interruptible(lambda: ending.number is not None):
            yield ending
        if ending.number is not None:
            raise Interrupted
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = unraisable
        for number, handler in before.items():
            signal.signal(number, handler)


def _heeded() -> list[signal.Signals]:
    """The signals that end a program: a process that was started to outlive its terminal (nohup) ignores SIGHUP."""
    return [n for n in _STOPPING if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]


def check() -> None:
    """Raises `Interrupted` inside `interruptible`, if the run should stop; called between batches."""
    if _questions and _questions[-1]():
        raise Interrupted


class StopSignal:
    """Records the first SIGTERM, SIGINT or SIGHUP; a second SIGINT interrupts at once.

    Handlers are restored at the end. A signal that nobody acted upon, which came after the last step, is then sent
    again, to whoever handles it around.

    Attributes:
      received: name of the first signal, or None.
      heeded: whether what runs has stopped because of it.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self.heeded = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Only the main thread may set handlers; in other threads the owner of the process handles signals.
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in _heeded()}
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self.received is not None and not self.heeded and kind is None and jax.process_count() == 1:
            os.kill(os.getpid(), signal.Signals[self.received])

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Evaluations in the `with` block end at the first signal, those that begin after it at once."""
        # Several processes must end an evaluation at the same batch, so there it is completed.
        is_wanted = lambda: self.received is not None and jax.process_count() == 1
        with interruptible(is_wanted):
            yield

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = self.received or signal.Signals(number).name
        if number == signal.SIGHUP:
            _leave_terminal()


def _leave_terminal() -> None:
    """Lets what is printed to a terminal from now on go nowhere: writing to a closed one is an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(nowhere, stream)
    os.close(nowhere)
