"""What a person sees while a run works: one bar on a terminal, a line now and then in a log file."""

import contextlib
import logging
import sys
import time
from collections.abc import Iterator

from tqdm import tqdm

_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Counts steps and examples, and shows them with the values given."""

    def __init__(self, desc: str, total: int | None, initial: int, show: bool):
        self._desc, self._total, self._done, self._show = desc, total, initial, show
        self._last_line = time.monotonic()
        self._window = (self._last_line, 0)
        self._examples = 0
        on_terminal = show and sys.stderr.isatty()
        self._bar = (
            tqdm(desc=desc, total=total, initial=initial, unit="step", dynamic_ncols=True, file=sys.stderr)
            if on_terminal
            else None
        )

    def update(self, *, examples: int, **values: float) -> None:
        """Counts one more step of `examples` examples."""
        self._done += 1
        self._examples += examples
        now = time.monotonic()
        if self._bar is not None:
            self._bar.set_postfix_str(self._describe(now, values), refresh=False)
            self._bar.update()
        elif self._show and now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            of = f"/{self._total}" if self._total is not None else ""
            _log.info("%s: step %d%s, %s", self._desc, self._done, of, self._describe(now, values))

    def restart_clock(self) -> None:
        """Leaves the time since the last update out of the rate: compiling, evaluating and saving are not training."""
        self._window, self._examples = (time.monotonic(), 0), 0

    def images_per_second(self) -> float | None:
        """Returns the rate since the clock was restarted, None before the first step after it."""
        seconds = time.monotonic() - self._window[0]
        return self._examples / seconds if self._examples and seconds > 0 else None

    def close(self) -> None:
        """Leaves the bar as it stands."""
        if self._bar is not None:
            self._bar.close()

    def _describe(self, now: float, values: dict[str, float]) -> str:
        ...
