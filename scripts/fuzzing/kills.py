"""Kills commands (SIGKILL) at random moments, lets them go on, and compares how they end.

python scripts/fuzzing/kills.py [--only pretrain finetune …] [--kills 90] [--seconds 600] [--out kills.csv]

Each command runs at its smallest, once undisturbed. Then it starts again and is killed after a random time,
`--in_a_row` times one behind the other in the same directory, before it may end. It has to end without an error, with
the metrics and parameters of the undisturbed run, bit for bit. Status 1 otherwise. All runs are forks of this process,
which has imported what they need, and share the cache of compiled programs.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from signals import metrics, parsed

from jaxprune import commands
from jaxprune import main as program
from jaxprune.checkpoints.store import load_params
from jaxprune.report.table import Table, column

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
LONGEST = 900.0  # seconds of one run
_WEIGHTS = "weights"  # of commands that need a network: a run of `finetune`
# By command: its config, with the directory of the weights as {run}.
COMMANDS: dict[str, tuple[str, ...]] = {
    "pretrain": ("mim/imagenet.py:smoke",),
    "simmim": ("mim/simmim.py:smoke",),
    "finetune": ("reduction/small.py:smoke", "--config.ema_decay=0.9"),
    "ranker": ("ranking/scenes.py:smoke",),
    "linear probe": ("mim/linear_probe.py:smoke", "--config.run={run}"),
    "segment": ("dense/scenes.py:smoke",),
    "detect": ("dense/scenes_detect.py:smoke",),
    "recover": ("recover.py:smoke",),
    "features": ("features.py:smoke", "--config.run={run}"),
    "analyse": ("analyse.py:smoke",),
    "tune": ("tune.py:smoke",),
    "quickstart": ("quickstart.py:smoke",),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """How the killed runs of a command ended."""

    command: str = column("command")
    kills: int = column("kills")
    late: int = column("after the end")
    ends: int = column("runs to the end")
    lost: int = column("lost")
    mismatches: int = column("other numbers")
    seconds: float = column("undisturbed, s")


def start(command: str, folder: Path, run: Path, log: Path) -> int:
    """Starts a command in a fork; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        config, *arguments = COMMANDS[command]
        parsed(f"{CONFIGS}/{config}", folder, *(argument.format(run=run) for argument in arguments))
        program.main([])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def ended(pid: int, seconds: float) -> int | None:
    """Waits for a process; returns its status, or None if it still runs."""
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def kill(pid: int) -> None:
    """Kills a process and waits for its end."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def finish(command: str, folder: Path, run: Path, log: Path) -> str:
    """Runs a command to its end; returns what went wrong, or ""."""
    pid = start(command, folder, run, log)
    status = ended(pid, LONGEST)
    if status is None:
        kill(pid)
        return "it hung"
    return f"status {status}: {log.read_text()[-1500:]}" if status else ""


def numbers(folder: Path) -> dict[str, Any]:
    """What has to be the same: metrics, and parameters, as checksums; in a fork, since this process starts no JAX."""
    result = folder.with_suffix(".numbers")
    result.unlink(missing_ok=True)
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            values = {name: zlib.crc32(content) for name, content in metrics(folder).items()}
            for path in sorted(folder.rglob("checkpoints")):
                values |= {
                    f"{path.relative_to(folder)} {name}": zlib.crc32(np.ascontiguousarray(array).tobytes())
                    for name, array in load_params(path).items()
                }
            result.write_text(json.dumps(values))
        os._exit(0)
    os.waitpid(pid, 0)
    return json.loads(result.read_text()) if result.exists() else {"unreadable": 1}


def measure(
    command: str, kills: int, most: float, in_a_row: int, work: Path, draw: random.Random, note: Callable[[str], None]
) -> Row:
    """Kills a command again and again, for at most some seconds; `note` is told what went wrong."""
    run, log = work / _WEIGHTS, work / "log"
    for name in ("compiled", "whole"):
        began = time.monotonic()
        if failed := finish(command, work / name, run, log):
            raise SystemExit(f"{command} undisturbed: {failed}")
        seconds = time.monotonic() - began
    expected, over = numbers(work / "whole"), time.monotonic() + most
    folder, counts = work / "run", dict.fromkeys(("kills", "late", "ends", "lost", "mismatches"), 0)
    moments = seconds
    while counts["kills"] < kills and time.monotonic() < over:
        shutil.rmtree(folder, ignore_errors=True)
        for _ in range(in_a_row):
            pid = start(command, folder, run, log)
            status = ended(pid, draw.uniform(0, moments))
            counts["kills" if status is None else "late"] += 1
            if status is None:
                kill(pid)
                continue
            moments *= 0.8  # the machine has less other load than when the undisturbed run was timed
            if status:
                counts["lost"] += 1
                note(f"lost: {command}: status {status}: {log.read_text()[-1500:]}")
            break
        counts["ends"] += 1
        if failed := finish(command, folder, run, log):
            counts["lost"] += 1
            note(f"lost: {command}: {failed}")
        elif differing := [name for name, value in numbers(folder).items() if expected.get(name) != value]:
            counts["mismatches"] += 1
            note(f"other: {command}: {differing[:5]}")
    return Row(command, **counts, seconds=seconds)


def rows(args: argparse.Namespace, note: Callable[[str], None]) -> Iterator[Row]:
    """Yields a row for each command."""
    for task in commands.names():
        commands.find(task)  # imports it
    draw = random.Random(args.seed)
    with tempfile.TemporaryDirectory(dir=args.work) as temporary:
        work = Path(temporary).resolve()
        jax.config.update("jax_compilation_cache_dir", str(work / "programs"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        if failed := finish("finetune", work / _WEIGHTS, work / _WEIGHTS, work / "log"):
            raise SystemExit(f"finetune undisturbed: {failed}")
        for command in args.only:
            place = work / command.replace(" ", "_")
            place.mkdir()
            (place / _WEIGHTS).symlink_to(work / _WEIGHTS)
            yield measure(command, args.kills, args.seconds, args.in_a_row, place, draw, note)
            shutil.rmtree(place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(COMMANDS), default=tuple(COMMANDS), metavar="COMMAND")
    parser.add_argument("--kills", type=int, default=90, help="of each command")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which a command has enough")
    parser.add_argument("--in_a_row", type=int, default=3, help="kills before a run may end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="an existing directory for the runs")
    parser.add_argument("--out", type=Path, default=Path("kills.csv"))
    args = parser.parse_args()
    table: list[Row] = []
    for row in rows(args, lambda text: print(text, file=sys.stderr, flush=True)):
        table.append(row)
        print(Table([row]).text(ends=False), file=sys.stderr, flush=True)
        Table(table).write_csv(args.out)
    print(Table(table).text(ends=False))
    sys.exit(any(row.lost or row.mismatches for row in table))


if __name__ == "__main__":
    main()
