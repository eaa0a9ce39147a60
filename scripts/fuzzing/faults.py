"""Ends a run at every call of the file system that it makes, and lets every such call fail, one at a time.

python scripts/fuzzing/faults.py [--only save resume …] [--every 1] [--delay 0] [--out faults.csv]

A small run of the real training loop, with its checkpoints, metrics, timings, pictures, TensorBoard files, report with
plots, table and note that it is complete. At every call that changes its directory, of Python, Orbax and
TensorStore alike, it is killed, and the call is refused: no space (ENOSPC), quota (EDQUOT), input and output (EIO),
read-only (EROFS). Calls that read are refused with EIO. The run must have ended in one line or not have
noticed, checkpoints that were there before must be there with the same bytes, and the same command again must end with
the parameters, optimizer, position of the data, metrics and report of an undisturbed run. Status 1 otherwise. With
`--delay` all this happens on a slow file system, where every call that changes something takes that long; the
undisturbed run is on the fast one. Linux 5.5 and later.
"""

import argparse
import dataclasses
import errno
import filecmp
import json
import logging
import shutil
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.backends.backend_pdf
import matplotlib.backends.backend_svg
import numpy as np
import optax
import tensorboardX.event_file_writer
from system_calls import KILL, Call, Ended, Fault, Process, supported

from jaxprune import parallel
from jaxprune.checkpoints.store import CheckpointStore
from jaxprune.report import Report, plots
from jaxprune.report.table import Table, column, write_csv
from jaxprune.train import loop
from jaxprune.train import workdir as workdirs
from jaxprune.train.loop import Hook
from jaxprune.train.writer import METRICS, Writer, read_metrics

# What a run imports late: each process that is killed has it already.
LATE = matplotlib.backends.backend_pdf, matplotlib.backends.backend_svg, tensorboardX.event_file_writer

STEPS, EVERY, KEEP = 6, 2, 2
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_RUN, _REPORT, _TABLE = "run", "report.html", "losses.csv"
_SCHEDULE = optax.cosine_decay_schedule(0.1, STEPS)


@dataclasses.dataclass(frozen=True)
class Row:
    """How the cases of a scene ended."""

    scene: str = column("scene")
    calls: int = column("calls")
    kills: int = column("kills")
    faults: int = column("faults")
    refused: int = column("refused")
    unheeded: int = column("gone on")
    raw: int = column("raw")
    lost: int = column("lost")
    mismatches: int = column("other numbers")
    seconds: float = column("slowest, s")


class Rows:
    """Endless batches of a linear problem; batch i depends on i alone."""

    def __init__(self):
        self.position = 0

    def __next__(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([7, self.position])
        x = rng.normal(size=(8, 4)).astype(np.float32)
        self.position += 1
        return {"x": x, "y": x @ np.array([1, -2, 3, 0.5], np.float32) + 1}

    def get_state(self) -> dict:
        return {"position": self.position}

    def set_state(self, state: dict) -> None:
        self.position = state["position"]


def loss(params: dict, batch: dict, key: jax.Array) -> tuple[jax.Array, dict]:
    """Squared error with noise, so that the random numbers of a step matter."""
    noise = 0.1 * jax.random.normal(key, batch["y"].shape)
    error = batch["x"] @ params["linear.kernel"] + params["linear.bias"] - batch["y"] - noise
    return jnp.mean(error**2), {}


def train(folder: str, steps: int = STEPS) -> None:
    """The run: to the end, or as far as a session with fewer steps would have come."""
    workdir = Path(folder)
    workdirs.prepare(workdir, {"steps": STEPS})
    if workdirs.is_complete(workdir):
        return

    def evaluation(step: int, state: Any, writer: Writer) -> None:
        writer.metrics(step, "eval", {"bias": state.params["linear.bias"]})
        writer.images(step, "kernel", np.full((2, 2, 3), step, np.uint8))

    result = loop.fit(
        loss,
        {"linear.kernel": np.zeros((4,), np.float32), "linear.bias": np.zeros((), np.float32)},
        optax.adam(_SCHEDULE),
        Rows(),
        workdir=workdir,
        mesh=parallel.make_mesh(),
        total_steps=steps,
        seed=3,
        log_every=1,
        checkpoint_every=EVERY,
        examples_per_step=8,
        keep=KEEP,
        hooks=[Hook(EVERY, evaluation)],
        schedule=_SCHEDULE,
        ema_decay=0.9,
    )
    if result.step == STEPS:
        report = Report("jaxprune", "a small run")
        report.section("Steps", f"{result.step} steps.")
        report.add_to(workdir / _REPORT)
        workdirs.mark_complete(workdir, {"steps": result.step})


def begin(folder: str) -> None:
    """The run as far as its first checkpoint."""
    train(folder, EVERY)


def describe(folder: str) -> None:
    """Writes the report of the run, twice as two commands would, with a plot, and its table."""
    records = [row for row in read_metrics(folder) if row["split"] == "train"]
    for title in ("Training", "More"):
        report = Report("jaxprune", "a small run")
        section = report.section(title, "Losses.")
        section.figure(plots.line_plot({"loss": ([r["step"] for r in records], [r["loss"] for r in records])}))
        report.add_to(Path(folder) / _REPORT)
    write_csv(Path(folder) / _TABLE, records)


def measure(folder: str) -> None:
    """Writes metrics, as training does: begins again after step 1, repeats an evaluation."""
    writer = Writer(folder, 1)
    for step in (2, 3):
        writer.metrics(step, "train", {"loss": 1 / step})
        writer.metrics(step, "eval", {"accuracy": 0.0})
        writer.forget(step)
        writer.metrics(step, "eval", {"accuracy": step / 4})
        writer.timing(step, {"step_seconds": 0.1})
    writer.close()


def numbers(folder: str) -> dict[str, Any]:
    """What has to be the same, as checksums: state, position of the data, metrics, summary, report, pictures."""
    workdir, checkpoints = Path(folder), Path(folder) / "checkpoints"
    paths = [workdir / name for name in (METRICS, _REPORT, _TABLE, workdirs.COMPLETE) if (workdir / name).exists()]
    paths += [path for name in ("plots", "pictures") for path in sorted((workdir / name).glob("*"))]
    values: dict[str, Any] = {str(path.relative_to(workdir)): zlib.crc32(path.read_bytes()) for path in paths}
    if checkpoints.exists():
        newest = max(steps_of(checkpoints))
        manifest = json.loads((checkpoints / str(newest) / "manifest.json").read_text())
        state = {name: np.zeros(shape, dtype) for name, (shape, dtype) in manifest["arrays"].items()}
        with CheckpointStore(checkpoints) as store:
            step, arrays, data = store.restore_latest(state) or (None, {}, {})
        values |= {"step": step, "data": data["batches"]}
        values |= {name: zlib.crc32(np.asarray(array).tobytes()) for name, array in arrays.items()}
    return values


def steps_of(folder: Path) -> list[int]:
    """The steps of the checkpoints in a directory."""
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.exists() else []


JOBS: dict[str, Callable[..., Any]] = {
    "begin": begin,
    "train": train,
    "describe": describe,
    "measure": measure,
    "numbers": numbers,
}
# By scene: its job, and what lies in its directory before: (job, arguments), one after the other.
SCENES: dict[str, tuple[str, tuple[tuple[str, tuple], ...]]] = {
    "save": ("begin", ()),
    "resume": ("train", (("train", (2 * EVERY,)),)),
    "report": ("describe", (("train", ()),)),
    "metrics": ("measure", (("measure", ()),)),
}


def harmed(before: Path, now: Path) -> str:
    """Names an older checkpoint that has not its bytes any more, or ""."""
    held = before / "checkpoints"
    newer = [step for step in steps_of(now / "checkpoints") if step > max(steps_of(held), default=0)]
    for step in sorted(steps_of(held), reverse=True)[: KEEP - len(newer)]:
        # One that could not be read was set aside, with its bytes.
        places = [now / "checkpoints" / f"{step}{end}" for end in ("", ".damaged")]
        if not any(place.exists() and equal(held / str(step), place) for place in places):
            return str(step)
    return ""


def equal(folder: Path, copy: Path) -> bool:
    """Whether two directories hold the same files with the same bytes."""
    names = [{str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} for root in (folder, copy)]
    _, differing, missing = filecmp.cmpfiles(folder, copy, list(names[0] | names[1]), shallow=False)
    return not differing and not missing


def faults_of(call: Call) -> tuple[int, ...]:
    """What a call can meet: its process is killed, or it is refused.

    A kill at a call that reads leaves the files of the kill at the next call that does not.
    """
    return (errno.EIO,) if call.reads else (KILL, *ERRORS)


def on_a_slow_disk(delay: float, position: int = 0, fault: int | None = None) -> Fault:
    """Delays the calls that change something, each by some seconds, and lets one meet a fault."""

    def meet(number: int, call: Call) -> int | None:
        if not call.reads:
            time.sleep(delay)
        return fault if number == position else None

    return meet


def scene(name: str, process: Process, work: Path, stride: int, note: Callable[[str], None], delay: float = 0.0) -> Row:
    """Ends or refuses every call of a scene, one at a time; `note` is told what was harmed."""
    job, preparation = SCENES[name]
    before, run = work / f"before {name}", work / _RUN
    before.mkdir()
    for earlier, arguments in preparation:
        _fresh(run, before)
        _done(process.run(earlier, str(run), *arguments))
        shutil.rmtree(before)
        run.rename(before)
    _fresh(run, before)
    calls = _done(process.run(job, str(run))).calls
    expected = _done(process.run("numbers", str(run))).result
    if delay:
        _fresh(run, before)
        calls = _done(process.run(job, str(run), fault=on_a_slow_disk(delay))).calls
        if _done(process.run("numbers", str(run))).result != expected:
            raise SystemExit(f"{name} ends otherwise where each call takes {delay:g} s.")
    counts: Counter[str] = Counter()
    slowest = 0.0
    for position in range(1, len(calls) + 1, stride):
        for fault in faults_of(calls[position - 1]):
            _fresh(run, before)
            ended = process.run(job, str(run), fault=on_a_slow_disk(delay, position, fault))
            # Threads of TensorStore call in any order.
            call = (ended.calls if len(ended.calls) >= position else calls)[position - 1]
            kind = "killed" if fault == KILL else errno.errorcode[fault]
            place = f"{name}, call {position} ({call.name} {call.path}), {kind}"
            counts["kills" if fault == KILL else "faults"] += 1
            counts[ended.status] += 1
            if ended.status in ("raw", "hung") or (ended.status == "refused" and not ended.result.isprintable()):
                counts["harm"] += 1
                note(f"raw: {place}: {ended.status}: {ended.result}")
            step = harmed(before, run)
            if ended.status != "done":
                process.kill()  # the same command again is a new process, without the threads of a save that failed
            again = process.run(job, str(run), fault=on_a_slow_disk(delay))
            slowest = max(slowest, ended.seconds, again.seconds)
            after = process.run("numbers", str(run)) if again.status == "done" else again
            if step or after.status != "done" or expected.keys() ^ after.result.keys():
                counts["lost"] += 1
                reason = after.result if after.status != "done" else expected.keys() ^ after.result.keys()
                note(f"lost: {place}: checkpoint {step or '-'}; {reason}; at first {ended.status} {ended.result}")
            elif differing := [key for key in expected if expected[key] != after.result[key]]:
                counts["mismatches"] += 1
                note(f"other: {place}: {differing}; at first {ended.status} {ended.result}")
    shutil.rmtree(run)
    ends = (counts[key] for key in ("kills", "faults", "refused", "done", "harm", "lost", "mismatches"))
    return Row(name, len(calls), *ends, seconds=slowest)


def _fresh(run: Path, before: Path) -> None:
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(before, run)


def _done(ended: Ended) -> Ended:
    if ended.status != "done":
        raise SystemExit(f"An undisturbed run ended so: {ended.status} {ended.result}")
    return ended


def rows(
    only: list[str], stride: int, folder: Path | None, note: Callable[[str], None], delay: float = 0.0
) -> Iterator[Row]:
    """Yields a row for each scene."""
    logging.disable(logging.ERROR)
    workdirs.commit = lambda: None  # asks git, in a process of its own
    loop.make_train_step = _once(loop.make_train_step)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        work = Path(temporary).resolve()
        jax.config.update("jax_compilation_cache_dir", str(work / "programs"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        process = Process(JOBS, work / _RUN)
        try:
            for name in only:
                yield scene(name, process, work, stride, note, delay)
        finally:
            process.kill()


def _once(make: Callable[..., Any]) -> Callable[..., Any]:
    """All runs of a process share one program: they train the same network."""
    programs: list[Any] = []

    def step(*arguments: Any, **options: Any) -> Any:
        if not programs:
            programs.append(make(*arguments, **options))
        return programs[0]

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(SCENES), default=tuple(SCENES), metavar="SCENE")
    parser.add_argument("--every", type=int, default=1, help="of how many calls one is disturbed")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds that each call that changes something takes")
    parser.add_argument("--work", type=Path, help="an existing directory for the runs, such as one in memory")
    parser.add_argument("--out", type=Path, default=Path("faults.csv"))
    args = parser.parse_args()
    if not supported():
        sys.exit("This needs Linux 5.5 or later on x86-64 or ARM64, with notices of seccomp (user_notif).")
    table: list[Row] = []
    began = time.monotonic()
    note = lambda text: print(text, file=sys.stderr, flush=True)
    for row in rows(list(args.only), args.every, args.work, note, args.delay):
        table.append(row)
        print(f"{row.scene}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        Table(table).write_csv(args.out)
    print(Table(table).text(ends=False))
    sys.exit(any(row.raw or row.lost or row.mismatches for row in table))


if __name__ == "__main__":
    main()
