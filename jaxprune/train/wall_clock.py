"""Where the wall-clock of a run goes, over all its sessions."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from jaxprune.train.workdir import LOCK
from jaxprune.train.writer import METRICS

START, COMPILE, DATA, EVALUATION, SAVE, LOST, STEPS = KINDS = (
    "start",
    "compile",
    "data",
    "evaluation",
    "save",
    "lost",
    "steps",
)


class WallClock:
    """Seconds by kind: what none of the others took is that of the steps.

    Time before `begin` is that of the start: opening the run, restoring its state. While the host waits for data, the
    devices may still be at work on an earlier step.

    Args:
      past: {kind: seconds} of earlier sessions; what they lost is told by `lose`.
      began: `time.monotonic()` when this session began.
    """

    def __init__(self, past: Mapping[str, float], began: float):
        self._began = began
        self._seconds = {kind: float(past.get(kind, 0.0)) for kind in KINDS} | {LOST: 0.0}
        self._known = 0.0  # of this session, not of its steps

    def begin(self) -> None:
        """Ends the start of the session."""
        self._add(START, time.monotonic() - self._began - self._known)

    @contextlib.contextmanager
    def on(self, kind: str) -> Iterator[None]:
        """Counts the time inside the `with` block as that of a kind."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._add(kind, time.monotonic() - start)

    def lose(self, seconds: float) -> None:
        """Counts time of earlier sessions whose steps are repeated."""
        self._seconds[LOST] += seconds

    def spent(self) -> dict[str, float]:
        """Returns {kind: seconds} of all sessions until now; their sum is the wall-clock."""
        steps = time.monotonic() - self._began - self._known
        return {**self._seconds, STEPS: self._seconds[STEPS] + max(steps, 0.0)}

    def _add(self, kind: str, seconds: float) -> None:
        self._seconds[kind] += seconds
        self._known += seconds


def lost_since(workdir: Path, moment: float | None) -> float:
    """Returns the seconds that an earlier session trained after what can be resumed, as far as its files show.

    Args:
      workdir: the run directory.
      moment: `time.time()` at the last save; None if there is none, and all since the session began is lost.
    """
    try:
        metrics = (workdir / METRICS).stat()
        since = (workdir / LOCK).stat().st_mtime if moment is None else moment
    except OSError:
        return 0.0
    return max(metrics.st_mtime - since, 0.0) if metrics.st_size else 0.0


def goodput(spent: Mapping[str, float]) -> float:
    """Returns the share of the wall-clock that the steps took.

    >>> goodput({"compile": 10.0, "lost": 15.0, "steps": 75.0})
    0.75
    """
    total = sum(spent.values())
    return spent.get(STEPS, 0.0) / total if total else 0.0
