"""Trains on a loaded machine and a nearly full disk, stopped again and again, and compares the end with a calm run.

python scripts/fuzzing/endurance.py --disk DIR [--minutes 30] [--every 120] [--load 1] [--out endurance.csv]

DIR is on a small file system of its own, of at most 1 GiB (`mount -t tmpfs -o size=64m tmpfs DIR`), which is filled but
for a few checkpoints: in one stretch there is room for the next ones, in the other for none. `--load` processes keep
cores busy. The program gets SIGTERM every `--every` seconds and is started again by the same command, as after an end
because of the disk. Every end has to be one of these, within a minute and without a traceback, and the run has to end
with the metrics and parameters of a run that nothing disturbed, bit for bit. Status 1 otherwise.
"""

import argparse
import contextlib
import dataclasses
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from signals import metrics

from jaxprune.checkpoints.store import load_params
from jaxprune.errors import UserError, command
from jaxprune.report.table import Table, column

ROOT = Path(__file__).resolve().parents[2]
CONFIG = f"{ROOT}/configs/mim/imagenet.py:smoke"
# A network whose steps take some milliseconds, with a checkpoint every few seconds.
SETTINGS = {
    "mim.embed_dim": 96,
    "mim.num_heads": 3,
    "mim.depth": 6,
    "batch_size": 32,
    "data.num_train": 2048,
    "checkpoint_every": 200,
    "log_every": 100,
    "picture_every": 0,
}
LARGEST, SPARE = 2**30, 2**20  # bytes: of the file system; beside checkpoints, for metrics and the report
LONGEST = 60.0  # seconds from a signal to the end
ROOMS = (3.5, 0.5)  # checkpoints that there is room for, in turns


@dataclasses.dataclass(frozen=True)
class Row:
    """How a run ended that was stopped again and again."""

    steps: int = column("steps")
    minutes: float = column("minutes", format=".3g")
    calm: float = column("minutes undisturbed", format=".3g")
    signals: int = column("SIGTERM")
    slowest: float = column("slowest end", "s", format=".2g")
    refused: int = column("ends because of the disk")
    raw: int = column("raw")
    same: bool = column("same end")


def train(folder: Path, steps: int) -> list[str]:
    """The command of a run."""
    settings = [f"--config.{name}={value}" for name, value in {**SETTINGS, "steps": steps}.items()]
    return [sys.executable, "-m", "jaxprune.main", f"--config={CONFIG}", f"--workdir={folder}", *settings]


def finish(folder: Path, steps: int) -> float:
    """Runs to the end; returns the seconds it took."""
    began = time.monotonic()
    subprocess.run(train(folder, steps), cwd=ROOT, check=True, capture_output=True, text=True)
    return time.monotonic() - began


def step_seconds(work: Path) -> float:
    """The time of a step, from two short runs."""
    short, longer = 200, 1000
    finish(work / "compiled", short)
    return (finish(work / "longer", longer) - finish(work / "short", short)) / (longer - short)


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keeps processes busy."""
    processes = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def _spin() -> None:
    while True:
        pass


class Disk:
    """A small file system that a file fills as far as wanted."""

    def __init__(self, folder: Path):
        if not os.path.ismount(folder):
            raise UserError(f"--disk={folder} is no file system of its own: mount one there.")
        if (total := shutil.disk_usage(folder).total) > LARGEST:
            raise UserError(f"--disk={folder} has {total:,} bytes: give a file system of at most {LARGEST:,} to fill.")
        self.folder, self._filler = folder, folder / "filler"

    def leave(self, room: float) -> None:
        """Leaves so many bytes free."""
        self._filler.unlink(missing_ok=True)
        excess = int(shutil.disk_usage(self.folder).free - room)
        if excess > 0:
            with self._filler.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, excess)


def disturbed(disk: Disk, run: Path, steps: int, checkpoint: int, interval: float) -> dict[str, Any]:
    """Trains to the end, with SIGTERM every so many seconds and a disk that is full in every other stretch."""
    counts: dict[str, Any] = {"signals": 0, "slowest": 0.0, "refused": 0, "raw": 0}
    stretch = 0
    while True:
        disk.leave(ROOMS[stretch % len(ROOMS)] * checkpoint + SPARE)
        stretch += 1
        with tempfile.TemporaryFile("w+") as log:
            program = subprocess.Popen(train(run, steps), cwd=ROOT, stdout=log, stderr=log)
            sent = 0.0
            try:
                status = program.wait(interval)
            except subprocess.TimeoutExpired:
                program.send_signal(signal.SIGTERM)
                sent = time.monotonic()
                try:
                    status = program.wait(LONGEST)
                except subprocess.TimeoutExpired:
                    program.kill()
                    status = program.wait()
                counts["signals"] += 1
                counts["slowest"] = max(counts["slowest"], time.monotonic() - sent)
            log.seek(0)
            printed = log.read()
        full = "No space left" in printed
        counts["refused"] += full
        if "Traceback" in printed or not (sent or full or not status) or status == -signal.SIGKILL:
            counts["raw"] += 1
            print(f"status {status}: {printed[-2000:]}", file=sys.stderr, flush=True)
        if not status and "Stopped at step" not in printed:
            return counts
        print(f"stretch {stretch}: status {status}, {printed.strip().splitlines()[-1]}", file=sys.stderr, flush=True)


def numbers(run: Path) -> dict[str, bytes]:
    """What has to be the same: metrics and parameters."""
    arrays = load_params(run / "checkpoints")
    return {**metrics(run), **{name: np.ascontiguousarray(array).tobytes() for name, array in arrays.items()}}


def measure(args: argparse.Namespace, work: Path) -> Row:
    """Runs undisturbed, then disturbed."""
    disk = Disk(args.disk)
    steps = max(round(60 * args.minutes / step_seconds(work)), 3 * SETTINGS["checkpoint_every"])
    calm = finish(work / "calm", steps)
    newest = max((work / "calm" / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime)
    checkpoint = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
    print(f"{steps} steps in {calm / 60:.1f} minutes, checkpoints of {checkpoint:,} bytes", file=sys.stderr, flush=True)
    began = time.monotonic()
    with busy(args.load):
        counts = disturbed(disk, disk.folder / "run", steps, checkpoint, args.every)
    minutes = (time.monotonic() - began) / 60
    same = numbers(disk.folder / "run") == numbers(work / "calm")
    return Row(steps=steps, minutes=minutes, calm=calm / 60, same=same, **counts)


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disk", type=Path, required=True, help="an empty file system of at most 1 GiB")
    parser.add_argument("--minutes", type=float, default=30.0, help="of steps, undisturbed")
    parser.add_argument("--every", type=float, default=120.0, help="seconds from a start to SIGTERM")
    parser.add_argument("--load", type=int, default=1, help="processes that keep a core busy")
    parser.add_argument("--out", type=Path, default=Path("endurance.csv"))
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as work:
        table = Table([measure(args, Path(work))])
    table.write_csv(args.out)
    print(table.text(ends=False))
    sys.exit(any(row.raw or not row.same for row in table))


if __name__ == "__main__":
    main()
