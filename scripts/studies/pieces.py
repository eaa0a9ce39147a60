"""The pieces of a study that takes hours: each is measured once, stored, and found again by a later run."""

import contextlib
import fcntl
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxprune import commands
from jaxprune.config import Config


class Pieces:
    """The pieces of a study, each measured once and stored as a line of JSON; several processes may share them.

    Args:
      out: directory of the study; the pieces are in pieces.jsonl.
      hours: no piece is started that would end later than this.
    """

    def __init__(self, out: Path, hours: float = float("inf")):
        self._path, self._ends = out / "pieces.jsonl", time.monotonic() + 3600 * hours
        self._longest = 0.0
        self.found: dict[str, Mapping[str, float]] = {}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._read()

    def get(self, name: str, call: Callable[[], Mapping[str, float]]) -> bool:
        """Measures a piece, unless it is stored or another process is measuring it.

        Returns:
          False if less time is left than the longest piece took.
        """
        with locked(self._path.parent / "locks" / name, wait=False) as is_owner:
            self._read()
            if name in self.found:
                return True
            if not is_owner:
                print(f"{name}: another process is measuring it.", flush=True)
                return True
            if time.monotonic() + self._longest > self._ends:
                print(f"No time left for {name} within --hours: run the same command again to resume.")
                return False
            start = time.monotonic()
            values = call()
            self._longest = max(self._longest, time.monotonic() - start)
            with self.updating():
                self.found[name] = values
                part = self._path.with_suffix(".part")
                part.write_text("".join(json.dumps([key, value]) + "\n" for key, value in self.found.items()))
                part.replace(self._path)
            print(f"{name}: {', '.join(f'{key} {value:.4g}' for key, value in values.items())}", flush=True)
        return True

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """Reads what other processes stored, and keeps them from writing meanwhile."""
        with locked(self._path.parent / "locks" / "all", wait=True):
            self._read()
            yield

    def _read(self) -> None:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self.found = dict(json.loads(line) for line in lines)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Locks a file, and returns whether that succeeded; the system releases it however the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def run_task(name: str, config: Config, folder: Path) -> dict[str, Any]:
    """Runs a task, and ends the program if a signal stopped it."""
    summary = commands.find(name)(config, folder)
    if summary.get("stopped") == "signal":
        raise SystemExit("Stopped: run the same command again to resume.")
    return summary
