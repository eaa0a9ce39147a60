"""Sends SIGINT, SIGTERM and SIGHUP to commands at many moments of each phase, and counts those that were lost.

python scripts/fuzzing/signals.py [--only quickstart analyse …] [--moments 12] [--out signals.csv]

Each command runs at its smallest, once undisturbed. Then it starts again for every moment, with what it had before that
phase, and gets one signal there. It has to end because of it, with the status of that signal or after a save, and
without a traceback. After some of the signals (`--finished`) the same command has to finish with the metrics of the
undisturbed run, bit for bit. All runs share this process and the cache of compiled programs. The signals are for the
command: SIGQUIT ends this program.
"""

import argparse
import contextlib
import dataclasses
import io
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from jaxprune import main as program
from jaxprune.report.table import Table, column
from jaxprune.train import workdir as workdirs
from jaxprune.train.writer import METRICS

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
START, END = "start", "end"  # before the first phase, after the last one
TIMES, RUN = "times.json", "run"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# By command: its config, and the directories that appear in its run, in order, as its phases begin.
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "quickstart": (
        f"{CONFIGS}/quickstart.py:smoke,scratch=steps",
        ("pretrain", "finetune", "scratch", "ranker", "pruned"),
    ),
    "analyse": (f"{CONFIGS}/analyse.py:smoke", ("train", "observed")),
    "evaluate": (f"{CONFIGS}/evaluate.py:smoke", ("train",)),
    "tune": (f"{CONFIGS}/tune.py:smoke", ("train", "tuned")),
}


class Outside(Exception):
    """A signal that came when no command ran."""


@dataclasses.dataclass(frozen=True)
class Row:
    """How the signals in one phase ended."""

    command: str = column("command")
    phase: str = column("phase")
    signals: int = column("signals")
    late: int = column("after the end")
    lost: int = column("lost")
    raw: int = column("raw")
    mismatches: int = column("other metrics")
    seconds: float = column("slowest end, s")


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
      status: its exit status.
      printed: what it printed.
      seconds: that it took, from its start or from a signal.
      raw: an exception, or "".
      sent: whether a signal was sent while it ran.
    """

    status: int
    printed: str
    seconds: float
    raw: str
    sent: bool = False

    @property
    def heeded(self) -> bool:
        """Whether the run ended because of a signal."""
        return self.status > 128 or "Stopped at step" in self.printed


def parsed(config: str, folder: Path, *arguments: str) -> Any:
    """Parses a command line as the program does; returns its config."""
    sys.argv = program.checked(["main", f"--config={config}", f"--workdir={folder}", *arguments])
    flags.FLAGS(sys.argv)
    return flags.FLAGS.config


def run(config: str, folder: Path, begun: Path | None = None, delay: float = 0.0, number: int = 0) -> Ended:
    """Runs a command, and sends it a signal some seconds after a directory appeared."""
    parsed(config, folder)
    printed, status, raw, sent = io.StringIO(), 0, "", []
    over = threading.Event()

    def send() -> None:
        while begun is not None and not begun.exists():
            if over.wait(0.002):
                return
        if not over.wait(delay):
            sent.append(time.monotonic())
            os.kill(os.getpid(), number)

    sender = threading.Thread(target=send) if number else None
    began = time.monotonic()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            if sender:
                sender.start()
            program.main([])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except Outside:
            sent.clear()
        except BaseException as error:
            raw = f"{type(error).__name__}: {error}"
        ended = time.monotonic()
        over.set()
        with contextlib.suppress(Outside):
            if sender:
                sender.join()
            time.sleep(0.01)  # a signal that was just sent comes here
    seconds = ended - (sent[0] if sent else began)
    raw = raw or ("Traceback" if "Traceback" in printed.getvalue() else "")
    return Ended(status, printed.getvalue(), seconds, raw, bool(sent) and sent[0] < ended)


def _outside(number: int, frame: object) -> None:
    raise Outside


@contextlib.contextmanager
def watching(folder: Path, phases: tuple[str, ...]) -> Iterator[dict[str, float]]:
    """Yields {phase: seconds until its directory appeared}, which fills while a command runs."""
    began, times, over = time.monotonic(), {START: 0.0}, threading.Event()

    def watch() -> None:
        for phase in phases:
            while not (folder / phase).exists():
                if over.wait(0.002):
                    return
            times[phase] = time.monotonic() - began

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield times
    finally:
        over.set()
        watcher.join()


def metrics(folder: Path) -> dict[str, bytes]:
    """The metrics of all runs in a directory."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob(METRICS))}


def before(phase: str, phases: tuple[str, ...], source: Path, folder: Path) -> None:
    """Makes a directory what it was in an undisturbed run before a phase began."""
    shutil.rmtree(folder, ignore_errors=True)
    if phase == START:
        return
    later = set(phases[phases.index(phase) :])
    folder.mkdir()
    for path in source.iterdir():
        if path.is_dir() and path.name not in later:
            shutil.copytree(path, folder / path.name)
    with contextlib.suppress(FileNotFoundError):  # tasks that only look at a run have none
        shutil.copy(source / workdirs.CONFIG, folder)


def undisturbed(command: str, work: Path) -> dict[str, float]:
    """Returns {phase: seconds until it began} of a run that gets no signal, and when it ended; runs only once."""
    config, phases = COMMANDS[command]
    if (work / TIMES).exists():
        return json.loads((work / TIMES).read_text())
    run(config, work / "first")  # compiles
    with watching(work / RUN, phases) as times:
        ended = run(config, work / RUN)
    if ended.status or ended.raw:
        raise SystemExit(f"{command} ended with status {ended.status} {ended.raw}:\n{ended.printed[-2000:]}")
    (work / RUN).rename(work / "whole")  # its notes name the directory, in which the disturbed runs go on
    times = {**times, END: ended.seconds}
    (work / TIMES).write_text(json.dumps(times))
    return times


def measure(command: str, only: Sequence[str], moments: int, finished: int, work: Path) -> Iterator[Row]:
    """Yields a row for each phase of a command."""
    config, phases = COMMANDS[command]
    times = undisturbed(command, work)
    expected, folder = metrics(work / "whole"), work / RUN
    kinds = itertools.cycle(SIGNALS)
    for phase, end in itertools.pairwise(times):
        if only and phase not in only:
            continue
        begin, end = times[phase], times[end]
        counts = dict.fromkeys(("signals", "late", "lost", "raw", "other"), 0)
        slowest = 0.0
        for index in range(moments):
            before(phase, phases, work / "whole", folder)
            number = next(kinds)
            begun = None if phase == START else folder / phase
            ended = run(config, folder, begun, (end - begin) * (index + 0.5) / moments, number)
            failed = bool(ended.raw) or (ended.status and not ended.sent)
            harm = "lost" if ended.sent and not ended.heeded else "raw" if failed else ""
            counts["signals"] += 1
            counts["late"] += not ended.sent
            slowest = max(slowest, ended.seconds if ended.sent else 0.0)
            if not harm and index * finished // moments != (index + 1) * finished // moments:
                again = run(config, folder)
                is_same = not again.status and not again.raw and metrics(folder) == expected
                harm, ended = "" if is_same else "other", again
            if harm:
                counts[harm] += 1
                print(f"{harm}: {command}, {phase}, {number}: {ended.raw} {ended.printed[-900:]}", file=sys.stderr)
        yield Row(command, phase, *counts.values(), seconds=slowest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(COMMANDS), default=tuple(COMMANDS))
    parser.add_argument("--moments", type=int, default=12, help="in each phase")
    parser.add_argument("--finished", type=int, default=12, help="of these: signals after which the run is finished")
    parser.add_argument("--phases", nargs="+", default=(), help="of the commands; all by default")
    parser.add_argument("--work", type=Path, help="keeps the undisturbed runs for other phases")
    parser.add_argument("--out", type=Path, default=Path("signals.csv"))
    args = parser.parse_args()
    for number in SIGNALS:
        signal.signal(number, _outside)
    rows: list[Row] = []
    for command in args.only:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (args.work or Path(temporary)) / command
            folder.mkdir(parents=True, exist_ok=True)
            for row in measure(command, args.phases, args.moments, min(args.finished, args.moments), folder):
                rows.append(row)
                print(Table([row]).text(ends=False), file=sys.stderr, flush=True)
                Table(rows).write_csv(args.out)
    print(Table(rows).text(ends=False))
    sys.exit(any(row.lost or row.raw or row.mismatches for row in rows))


if __name__ == "__main__":
    main()
