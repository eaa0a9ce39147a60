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


@contextmanager
def ending_at_ctrl_c() -> Iterator[None]:
    """Ctrl-C ends the `with` block by a `KeyboardInterrupt`, or by `Interrupted` from the next `check` or at its end.

    Python drops an exception that is raised in a callback of the garbage collector, where compiling spends some time;
    then it is raised again. Call it from the main thread. Training temporarily sets its own handlers.
    """
    pressed = False
    unraisable = sys.unraisablehook

    def note(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    def again(dropped: Any) -> None:
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            unraisable(dropped)
        elif threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGALRM)}
    sys.unraisablehook = again
    try:
        with interruptible(lambda: pressed):
            yield
        if pressed:
            raise Interrupted
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = unraisable
        for number, handler in before.items():
            signal.signal(number, handler)


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
            # A process that was started to outlive its terminal (nohup) ignores SIGHUP.
            numbers = [n for n in _STOPPING if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
            self._previous = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self.received is not None and not self.heeded and kind is None and jax.process_count() == 1:
            os.kill(os.getpid(), signal.Signals[self.received])

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
