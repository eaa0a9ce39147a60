"""Progress of a run: a bar on a terminal, an occasional line in a log file."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_FOR_A_RATE = 0.5

_log = logging.getLogger(__name__)


class Progress:
    """Counts steps and images (or other units), and shows both with the values of the last step.

    Lines in a log file are half a minute apart over all bars of a process: a task of many short bars logs lines too.
    What is left ends with the last step, or earlier with `seconds_left()`, for a run with a limit on its time.
    """

    _last_line = time.monotonic()

    def __init__(
        self,
        desc: str,
        total: int | None = None,
        initial: int = 0,
        show: bool = True,
        unit: str = "images",
        seconds_left: Callable[[], float] | None = None,
    ):
        self._seconds_left = seconds_left
        self._desc, self._total, self._done, self._unit = desc, total, initial, unit
        self._images_per_step = 0
        self._images, self._since = 0, time.monotonic()
        self._rate_before: float | None = None
        self._lines = show and not _can_draw()
        self._bar = tqdm(
            desc=desc,
            total=total,
            initial=initial,
            unit="step",
            dynamic_ncols=True,
            leave=total is not None,
            disable=not show or self._lines,
        )

    def update(self, images: int, **values: float) -> None:
        """Counts one more step, of `images` images."""
        self._done += 1
        self._images += images
        self._images_per_step = images
        self._bar.update()
        self._bar.set_postfix(self._shown(values), refresh=False)
        if self._lines and time.monotonic() - Progress._last_line > _SECONDS_BETWEEN_LINES:
            Progress._last_line = time.monotonic()
            values_text = "".join(f", {name} {value}" for name, value in self._shown(values).items())
            _log.info(
                "%s: step %d%s%s", self._desc, self._done, f" of {self._total}" if self._total else "", values_text
            )

    def restart_clock(self) -> None:
        """Restarts the clock of the rate, to leave out compilation, evaluation and saving."""
        if time.monotonic() - self._since > _SECONDS_FOR_A_RATE:
            self._rate_before = self.images_per_second(done=True)
        self._images, self._since = 0, time.monotonic()

    def images_per_second(self, *, done: bool = False) -> float | None:
        """Returns the rate since the clock was restarted, or the previous one if that is too recent.

        Args:
          done: whether the last counted step has ended; usually it has only been dispatched to the device.
        """
        seconds = time.monotonic() - self._since
        images = self._images - (0 if done else self._images_per_step)
        if images > 0 and (seconds > _SECONDS_FOR_A_RATE or self._rate_before is None):
            return images / seconds
        return self._rate_before

    def close(self) -> None:
        """Closes the bar and leaves it on the screen."""
        self._bar.close()

    def _shown(self, values: dict[str, float]) -> dict[str, str]:
        rate = self.images_per_second()
        return {
            **{name: f"{value:.4g}" for name, value in values.items()},
            **({} if rate is None else {f"{self._unit}/s": f"{rate:.4g}"}),
            **self._time_left(rate),
        }

    def _time_left(self, rate: float | None) -> dict[str, str]:
        # The bar computes its own estimate, which knows the steps only.
        if rate is None or self._total is None or not (self._lines or self._seconds_left):
            return {}
        seconds = (self._total - self._done) * self._images_per_step / rate
        if self._seconds_left is not None:
            seconds = min(seconds, max(self._seconds_left(), 0.0))
        return {"left": tqdm.format_interval(round(seconds))}


@contextlib.contextmanager
def progress(
    desc: str,
    total: int | None = None,
    initial: int = 0,
    show: bool = True,
    unit: str = "images",
    seconds_left: Callable[[], float] | None = None,
) -> Iterator[Progress]:
    """Shows the progress of the `with` block; see `Progress`."""
    bar = Progress(desc, total, initial, show, unit, seconds_left)
    try:
        yield bar
    finally:
        bar.close()


@contextlib.contextmanager
def still(doing: str) -> Iterator[None]:
    """Says every half minute that the `with` block, which takes long and cannot be counted, goes on.

    Args:
      doing: what it does, such as "train: compiling the training step".
    """
    start, ended = time.monotonic(), threading.Event()

    def speak() -> None:
        while not ended.wait(_SECONDS_BETWEEN_LINES):
            _log.info("%s, %.0f s so far…", doing, time.monotonic() - start)

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        ended.set()
        speaker.join()


def log_to_terminal() -> None:
    """Sends jaxprune's log messages to standard error, above a progress bar; call it at program start."""
    logger = logging.getLogger("jaxprune")
    handler = _AboveBars()
    handler.setFormatter(_Formatter())
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _can_draw() -> bool:
    # An unattended pseudo-terminal has no size, and a bar on it would be blank.
    return sys.stderr.isatty() and min(os.get_terminal_size(sys.stderr.fileno())) > 0


class _AboveBars(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = super().format(record)
        return message if record.levelno < logging.WARNING else f"{record.levelname}: {message}"
