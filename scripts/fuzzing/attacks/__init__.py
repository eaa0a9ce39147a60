"""Attacks on what the library reads: each yields damaged or hostile cases, and `run` counts how they end."""

import contextlib
import faulthandler
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jaxtyping

from jaxprune.errors import UserError

HANGS = 300.0  # seconds of one case after which the process ends with a traceback of where it hangs


class Case(NamedTuple):
    """One damaged input.

    Attributes:
      damage: what was done, for messages.
      read: reads the input; returns whether nothing wrong came of it. A `UserError` is a refusal.
    """

    damage: Any
    read: Callable[[], bool]


Attack = Callable[[Path, int, int], Iterator[Case]]  # (an empty folder, number of cases, seed) -> cases


class Outcome(NamedTuple):
    """How the cases of an attack ended.

    Attributes:
      cases: number of cases.
      refused: cases that ended in a `UserError`.
      raw: cases that ended in any other exception, or in a message of several lines or with control characters.
      unnoticed: cases in which something wrong was read, without a word.
      longest: the longest message, in characters.
      seconds: processor time of the slowest case.
      megabytes: memory that the largest case took besides what the process had before; NaN where it cannot be read.
    """

    cases: int
    refused: int
    raw: tuple[str, ...]
    unnoticed: tuple[str, ...]
    longest: int
    seconds: float
    megabytes: float

    def joined(self, outcome: "Outcome") -> "Outcome":
        """Returns the outcome of both."""
        return Outcome(
            *(self[index] + outcome[index] for index in range(4)),
            *(max(self[index], outcome[index]) for index in range(4, 7)),
        )


def run(cases: Iterable[Case]) -> Outcome:
    """Reads every case as a program of its own would, without type checks of shapes, and counts."""
    count = refused = longest = 0
    raw, unnoticed, slowest, largest = [], [], 0.0, 0.0
    for case in cases:
        count += 1
        memory = _PeakMemory()
        start = time.process_time()
        try:
            with _bounded(), without_type_checks():
                unharmed = case.read()
            if not unharmed:
                unnoticed.append(repr(case.damage)[:300])
        except UserError as error:
            message = str(error)
            refused, longest = refused + 1, max(longest, len(message))
            if not message.isprintable():
                raw.append(f"{case.damage!r:.300}: the message is not one printable line: {message[:300]!r}")
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            raw.append(f"{case.damage!r:.300}: {type(error).__name__} in {where}: {str(error)[:300]}")
        slowest = max(slowest, time.process_time() - start)
        largest = max(largest, memory.megabytes())
    return Outcome(count, refused, tuple(raw), tuple(unnoticed), longest, slowest, largest)


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    faulthandler.dump_traceback_later(HANGS, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def without_type_checks() -> Iterator[None]:
    """The tests check shapes in signatures, which a user's program does not."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


class _PeakMemory:
    """The most memory that the process has held since, on Linux."""

    def __init__(self):
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins again at what is held now
        self._before = _status("VmRSS")

    def megabytes(self) -> float:
        """Returns how much more than at the start was held."""
        return (_status("VmHWM") - self._before) / 1024


def _status(name: str) -> float:
    """A line of the kernel's status of this process, in KiB."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return float(line.split()[1])
    return float("nan")
