"""Broken examples: how they are reported, logged and replaced."""

import logging
import threading

from jaxprune.data.source import Example, Source, frames_of
from jaxprune.errors import UserError

_log = logging.getLogger(__name__)
_lock = threading.Lock()


class Unreadable(Exception):
    """Raised for an example that cannot be read; the run continues without it.

    Args:
      example: path or name of the example.
      reason: why it cannot be read.
      kind: "image" or "video".
    """

    def __init__(self, example: str, reason: str, kind: str = "image"):
        super().__init__(example, reason, kind)
        self.example, self.reason, self.kind = example, reason, kind


def note_broken(broken: dict[str, str], error: Unreadable) -> None:
    """Adds an example to `broken`, and logs it if it is new.

    Args:
      broken: {path or name of an example: why it cannot be read}.
      error: the error that reading it raised.
    """
    with _lock:
        if error.example in broken:
            return
        broken[error.example] = error.reason
    _log.warning("Broken %s left out (%d so far): %s: %s", error.kind, len(broken), error.example, error.reason)


def read_or_next(source: Source, index: int) -> Example:
    """Returns example `index` or, if it is broken, the next readable one, as its own `index` shows.

    Broken examples are added to `source.broken`. The search wraps around at the end of the source.

    Args:
      source: the examples.
      index: which one to read.

    Raises:
      UserError: no example can be read.
    """
    for step in range(len(source)):
        try:
            return source[(index + step) % len(source)]
        except Unreadable as error:
            note_broken(source.broken, error)
    path, reason = next(iter(source.broken.items()))
    files = "videos" if frames_of(source) else "images"
    raise UserError(f"None of the {len(source)} {files} of {source.name!r} can be read; the first, {path}: {reason}.")
