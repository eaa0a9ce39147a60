"""Continues one run under several Pythons in turn, each with its own JAX and Orbax, and compares its numbers.

python scripts/fuzzing/versions.py PYTHON PYTHON … [--config configs/mim/imagenet.py:smoke] [--work DIR]

Every environment trains the run whole. Then one run is killed under the first, goes on under the second, is killed
there, and so on, and ends under the last; and once more in the opposite order. Steps have to be the same everywhere,
losses those of the environment that ended the run to 1e-5. Status 1 otherwise.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jaxprune.report.table import Table, column

ROOT = Path(__file__).parent.parent.parent
_VERSIONS = (
    "import sys, jax, orbax.checkpoint as orbax; print(sys.version.split()[0], jax.__version__, orbax.__version__)"
)
_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Row:
    """How a run that changed its environment ended."""

    order: str = column("Python, JAX, Orbax in turn")
    kills: int = column("kills")
    steps: int = column("steps")
    difference: float = column("largest difference of a loss")


def command(python: str, config: str, workdir: Path) -> subprocess.Popen:
    """Starts the run under a Python."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = ["--config.checkpoint_every=2", "--config.log_every=1", "--config.epochs=8.0"]
    line = [python, "-m", "jaxprune.main", f"--config={config}", f"--workdir={workdir}", *arguments]
    return subprocess.Popen(line, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> None:
    """Waits for a run to end.

    Raises:
      SystemExit: it failed.
    """
    _, errors = process.communicate()
    if process.returncode:
        sys.exit(f"A run ended with status {process.returncode}: {errors[-2000:]}")


def kill_behind(process: subprocess.Popen, workdir: Path, step: int) -> None:
    """Kills a run once it has saved a step beyond `step`."""
    while newest(workdir) <= step:
        if process.poll() is not None:
            finish(process)
            return
        time.sleep(0.02)
    process.kill()
    process.communicate()


def newest(workdir: Path) -> int:
    """The newest checkpoint's step; 0 without one."""
    return max((int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()), default=0)


def losses(workdir: Path) -> dict[tuple[str, int], float]:
    """{(split, step): loss} of a run."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return {(row["split"], row["step"]): row["loss"] for row in map(json.loads, lines)}


def turns(pythons: list[str], config: str, workdir: Path) -> int:
    """Hands a run from one Python to the next; returns the number of kills."""
    for python in pythons[:-1]:
        kill_behind(command(python, config, workdir), workdir, newest(workdir))
    finish(command(pythons[-1], config, workdir))
    return len(pythons) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="interpreters with jaxprune's dependencies")
    parser.add_argument("--config", default="configs/mim/imagenet.py:smoke")
    parser.add_argument("--work", type=Path, help="an existing directory for the runs")
    args = parser.parse_args()
    versions = {
        python: subprocess.run([python, "-c", _VERSIONS], check=True, capture_output=True, text=True).stdout.strip()
        for python in args.pythons
    }
    table = []
    with tempfile.TemporaryDirectory(dir=args.work) as temporary:
        work = Path(temporary)
        for index, python in enumerate(versions):
            finish(command(python, args.config, work / f"whole_{index}"))
        references = {python: losses(work / f"whole_{index}") for index, python in enumerate(versions)}
        for index, order in enumerate((args.pythons, args.pythons[::-1])):
            kills = turns(order, args.config, work / f"turns_{index}")
            run_losses, expected = losses(work / f"turns_{index}"), references[order[-1]]
            if run_losses.keys() != expected.keys():
                sys.exit(f"{len(run_losses)} lines of metrics instead of {len(expected)}.")
            difference = max(abs(run_losses[key] - expected[key]) for key in expected)
            table.append(Row("; ".join(versions[python] for python in order), kills, len(expected), difference))
    print(Table(table).text(ends=False))
    sys.exit(any(row.difference > _TOLERANCE for row in table))


if __name__ == "__main__":
    main()
