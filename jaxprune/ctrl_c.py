"""Ctrl-C where nothing is half done yet, or any more: one line, and no traceback."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

STATUS = 130  # the shell's exit status for a program ended by Ctrl-C
MESSAGE = "Interrupted; the same command runs it again."


def end_quietly() -> None:
    """Lets Ctrl-C end the process at once, with a line, until something else handles it; call it in the main thread."""

    def end(number: int, frame: object) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"\n{MESSAGE}\n".encode())
        os._exit(STATUS)

    signal.signal(signal.SIGINT, end)


@contextlib.contextmanager
def ending_quietly() -> Iterator[None]:
    """Inside the `with` block, Ctrl-C ends the process as with `end_quietly`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    end_quietly()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
