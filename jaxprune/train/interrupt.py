"""What runs long between two steps ends early when the run is to stop, and is done again when it goes on."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
