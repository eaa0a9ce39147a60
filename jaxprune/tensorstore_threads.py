"""Threads of TensorStore that outlive a save that failed: they find its event loop closed, and print a traceback."""

import sys
from collections.abc import Callable
from typing import Any


def pass_over() -> None:
    """Lets exceptions of a closed event loop pass without a word, from now on; all others reach the hook before.

    It concerns those that nobody can catch (`sys.unraisablehook`). Who replaces the hook for a while calls it before.
    """
    if not isinstance(sys.unraisablehook, _Hook):
        sys.unraisablehook = _Hook(sys.unraisablehook)


class _Hook:
    def __init__(self, previous: Callable[[Any], Any]):
        self._previous = previous

    def __call__(self, unraisable: Any) -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            self._previous(unraisable)
