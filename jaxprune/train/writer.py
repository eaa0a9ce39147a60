"""Writes the outputs of a run: metrics, pictures, timings, also for TensorBoard."""

import importlib.util
import json
import logging
import math
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from jaxprune.files import read_bytes, reading, size_and_crc, write_atomically, writing
from jaxprune.train.tensorboard import TensorBoard

METRICS = "metrics.jsonl"
TIMINGS = "timings.json"
PICTURES = "pictures"

# `rewind` to before the first step.
BEGINNING = -1

_log = logging.getLogger(__name__)


class Silent:
    """A `Writer` that writes nothing, for all processes of a run but the first."""

    def rewind(self, step: int) -> None: ...

    def metrics(self, step: int, split: str, values: Mapping[str, Any]) -> None: ...

    def forget(self, step: int) -> None: ...

    def images(self, step: int, name: str, image: np.ndarray) -> None: ...

    def timing(self, step: int, values: Mapping[str, float]) -> None: ...

    def sum_of(self, name: str) -> float:
        return 0.0

    def sync(self) -> None: ...

    def extent(self) -> list[int]:
        return [0, 0]

    def close(self) -> None: ...


class Writer:
    """Writes `metrics.jsonl`, `pictures/`, `timings.json` and `tensorboard/` of a run directory.

    Args:
      workdir: the run directory.
      resume_step: the step of the restored checkpoint: records of later steps are removed, since those steps are
        repeated. None keeps everything.
      tensorboard: whether to write TensorBoard files too.

    `metrics.jsonl` contains no times and no rounded numbers: a resumed run writes the same bytes as an uninterrupted
    one.
    """

    def __init__(self, workdir: str | os.PathLike, resume_step: int | None = None, tensorboard: bool = True):
        self.workdir = Path(workdir)
        with writing(self.workdir):
            self.workdir.mkdir(parents=True, exist_ok=True)
        self._tensorboard_wanted, self._purge_step = tensorboard, None
        self._tensorboard: TensorBoard | None = None
        self._timings = _read_timings(self.workdir / TIMINGS)
        self._timed = False  # since the last sync: another run may hold the directory and write its own timings
        self._file = self._open()
        if resume_step is not None:
            self.rewind(resume_step)

    def rewind(self, step: int) -> None:
        """Removes metrics and pictures of later steps, and malformed lines; `BEGINNING` removes everything."""
        self._keep(lambda row: row["step"] <= step)
        for path in (self.workdir / PICTURES).glob("*.png"):
            if (number := re.search(r"_(\d{8,})$", path.stem)) and int(number[1]) > step:
                with writing(path):
                    path.unlink()
        self._purge_step = step + 1

    def forget(self, step: int) -> None:
        """Removes the evaluation after a step, so that it can be repeated."""
        self._keep(lambda row: row["step"] != step or row["split"] == "train")

    def _keep(self, is_kept: Callable[[dict[str, Any]], bool]) -> None:
        self._file.close()
        path = self.workdir / METRICS
        with writing(path):
            lines = path.read_bytes().splitlines(keepends=True)
        rows = [(line, row) for line in lines if (row := _parse(line))]
        # The last line may be truncated by the end of an earlier session; earlier lines must be complete.
        odd = len(lines) - len(rows) - bool(lines and not lines[-1].endswith(b"\n"))
        if odd:
            _log.warning("%s: removing %d lines that are not jaxprune metrics.", path, odd)
        write_atomically(path, b"".join(line for line, row in rows if is_kept(row)))
        self._file = self._open()

    def metrics(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        """Appends one line of scalars about a step; `split` is "train" or "eval"."""
        numbers = {name: float(value) for name, value in values.items()}
        # JSON has neither infinity nor NaN.
        row = {k: v if math.isfinite(v) else None for k, v in numbers.items()} | {"step": int(step), "split": split}
        with writing(self.workdir / METRICS):
            self._append(json.dumps(row, sort_keys=True).encode() + b"\n")
        if split != "train":
            _log.info("step %d, %s: %s", step, split, ", ".join(f"{k} {v:.5g}" for k, v in sorted(numbers.items())))
        if board := self._board():
            for name, value in numbers.items():
                board.scalar(f"{split}/{name}", value, step)

    def images(self, step: int, name: str, image: np.ndarray) -> Path:
        """Saves a picture, (H, W, 3) uint8 or float in 0..1, and returns the path of its PNG."""
        image = np.asarray(image)
        if image.dtype != np.uint8:
            image = np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)
        path = self.workdir / PICTURES / f"{name.replace('/', '_')}_{step:08d}.png"
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(image).save(path)
        if board := self._board():
            board.image(name, image, step)
        return path

    def timing(self, step: int, values: Mapping[str, float]) -> None:
        """Records clock measurements (seconds, rates) for TensorBoard and the summary in `timings.json`."""
        for name, value in values.items():
            self._timed = True
            summary = self._timings.setdefault(name, {"count": 0, "mean": 0.0})
            summary["count"] += 1
            summary["mean"] += (float(value) - summary["mean"]) / summary["count"]
            summary["last"] = float(value)
            if board := self._board():
                board.scalar(f"timing/{name}", float(value), step)

    def sum_of(self, name: str) -> float:
        """Returns the sum of all recorded measurements of a name, over all sessions."""
        summary = self._timings.get(name, {"count": 0, "mean": 0.0})
        return summary["count"] * summary["mean"]

    def sync(self) -> None:
        """Puts everything written so far on disk; called before a checkpoint relies on it."""
        if self._file.closed:  # by a rewind that failed
            return
        with writing(self.workdir / METRICS):
            os.fsync(self._file.fileno())
        if self._timed:
            write_atomically(self.workdir / TIMINGS, json.dumps(self._timings, indent=2, sort_keys=True) + "\n")
            self._timed = False
        if self._tensorboard is not None:
            self._tensorboard.flush()

    def extent(self) -> list[int]:
        """Returns the [bytes, CRC-32] of the metrics written so far, for `warn_if_changed`."""
        with writing(self.workdir / METRICS):
            return size_and_crc(self.workdir / METRICS)

    def close(self) -> None:
        """Syncs and closes the files."""
        self.sync()
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def _open(self) -> IO[bytes]:
        # Unbuffered, so a line is either in the file or was never written.
        with writing(self.workdir / METRICS):
            return (self.workdir / METRICS).open("ab", buffering=0)

    def _append(self, line: bytes) -> None:
        while line:  # a disk that fills up may take only a part of it
            line = line[self._file.write(line) :]

    def _board(self) -> TensorBoard | None:
        if self._tensorboard is None and self._tensorboard_wanted:
            # Optional for a run.
            if importlib.util.find_spec("tensorboardX") is None:
                _log.info("No TensorBoard files: tensorboardX is not installed (pip install tensorboardX).")
                self._tensorboard_wanted = False
                return None
            self._tensorboard = TensorBoard(self.workdir / "tensorboard", self._purge_step)
        return self._tensorboard


def read_metrics(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """Returns the lines of a run's `metrics.jsonl`, without partial lines.

    Raises:
      UserError: it cannot be read.
    """
    path = Path(workdir) / METRICS
    with reading(path):
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [row for line in lines if (row := _parse(line))]


def warn_if_changed(workdir: str | os.PathLike, extent: Sequence[int]) -> None:
    """Warns if the first lines of a run's metrics are not those that were there before.

    Args:
      extent: what `Writer.extent` returned then.
    """
    size, crc = extent
    try:
        present = zlib.crc32(read_bytes(Path(workdir) / METRICS)[:size])
    except OSError:
        present = 0
    if present != crc:
        _log.warning(
            "%s was changed or cut since it was written: its curves are not those of the run. The checkpoints and "
            "results are not affected.",
            Path(workdir) / METRICS,
        )


def _parse(line: bytes) -> dict[str, Any] | None:
    """Parses the metrics of a step; None for anything else."""
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int or not isinstance(row.get("split"), str):
        return None
    numbers = (value for name, value in row.items() if name != "split")
    return row if all(value is None or isinstance(value, (int, float)) for value in numbers) else None


def _read_timings(path: Path) -> dict[str, dict[str, float]]:
    try:
        timings = json.loads(path.read_bytes())
        return {name: {"count": int(summary["count"]), **_floats(summary)} for name, summary in timings.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        _log.warning("%s is damaged; timings start over.", path)
        return {}


def _floats(summary: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(summary[name]) for name in ("mean", "last")}
