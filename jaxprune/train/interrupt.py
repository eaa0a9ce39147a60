"""What runs long between two steps ends early when the run is to stop, and is done again when it goes on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_wanted: list[Callable[[], bool]] = []


class Interrupted(Exception):
    """Raised in an evaluation, by `check`, once the run is to stop."""


@contextmanager
def interruptible(wanted: Callable[[], bool]) -> Iterator[None]:
    """While the `with` block runs, `check` asks whether a stop is wanted."""
    _wanted.append(wanted)
    try:
        yield
    finally:
        _wanted.pop()


def check() -> None:
    """Raises `Interrupted` inside `interruptible`, if the run is to stop; called between two batches."""
    if _wanted and _wanted[-1]():
        raise Interrupted
