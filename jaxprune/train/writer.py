"""Everything a run writes while it works: metrics, pictures, timings, and the same for TensorBoard."""

import json
import logging
import math
import os
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from jaxprune.checkpoints.files import write_atomically

METRICS = "metrics.jsonl"
TIMINGS = "timings.json"
PICTURES = "pictures"

# `rewind` to before the first step.
BEGINNING = -1

_log = logging.getLogger(__name__)


class Writer:
    """Writes `metrics.jsonl`, `pictures/`, `timings.json` and `tensorboard/` of a run directory.

    Args:
      workdir: the run directory.
      resume_step: the step of the restored checkpoint: what was written about later steps is cut, since those steps
        happen again. None keeps everything.
      tensorboard: whether to write TensorBoard files too.

    `metrics.jsonl` holds no clock time and no rounding: a run that was killed and resumed writes the same bytes as one
    that was not.
    """

    def __init__(self, workdir: str | os.PathLike, resume_step: int | None = None, tensorboard: bool = True):
        self.workdir = Path(workdir)
        self.workdir.mkdir(parents=True, exist_ok=True)
        self._tensorboard_wanted, self._purge_step = tensorboard, None
        self._tensorboard: Any = None
        self._timings = _read_timings(self.workdir)
        if resume_step is not None:
            self.rewind(resume_step)
        self._file = (self.workdir / METRICS).open("ab", buffering=0)

    def rewind(self, step: int) -> None:
        """Cuts the metrics of later steps and a half-written last line; `BEGINNING` cuts everything."""
        path = self.workdir / METRICS
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            kept = b"".join(line for line in lines if (row := _parse(line)) is not None and row["step"] <= step)
            write_atomically(path, kept)
            self._file = path.open("ab", buffering=0)
        self._purge_step = step + 1

    def metrics(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        """Appends one line of scalars about a step; `split` is "train" or "eval"."""
        numbers = {name: float(value) for name, value in values.items()}
        # JSON has no infinity and no NaN.
        row = {"step": int(step), "split": split} | {k: v if math.isfinite(v) else None for k, v in numbers.items()}
        self._file.write(json.dumps(row, sort_keys=True).encode() + b"\n")
        if split != "train":
            _log.info("step %d, %s: %s", step, split, ", ".join(f"{k} {v:.5g}" for k, v in sorted(numbers.items())))
        if board := self._board():
            for name, value in numbers.items():
                board.add_scalar(f"{split}/{name}", value, step)

    def images(self, step: int, name: str, image: np.ndarray) -> Path:
        """Saves a picture, (H, W, 3) uint8 or float in 0..1, and returns the path of its PNG."""
        image = np.asarray(image)
        if image.dtype != np.uint8:
            image = np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)
        path = self.workdir / PICTURES / f"{name.replace('/', '_')}_{step:08d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(path)
        if board := self._board():
            board.add_image(name, image, step, dataformats="HWC")
        return path

    def timing(self, step: int, values: Mapping[str, float]) -> None:
        """Notes clock measurements (seconds, rates): for TensorBoard and the summary in `timings.json`."""
        for name, value in values.items():
            self._timings.setdefault(name, []).append(float(value))
            if board := self._board():
                board.add_scalar(f"timing/{name}", float(value), step)

    def text(self, step: int, name: str, text: str) -> None:
        """Shows a text (Markdown) in TensorBoard."""
        if board := self._board():
            board.add_text(name, text, step)

    def sync(self) -> None:
        """Puts everything written so far on disk; called before a checkpoint relies on it."""
        os.fsync(self._file.fileno())
        if self._timings:
            summary = {name: _summary(values) for name, values in sorted(self._timings.items())}
            write_atomically(self.workdir / TIMINGS, json.dumps(summary, indent=2) + "\n")
        if self._tensorboard is not None:
            self._tensorboard.flush()

    def close(self) -> None:
        """Syncs and closes the files."""
        self.sync()
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def _board(self) -> Any:
        if self._tensorboard is None and self._tensorboard_wanted:
            try:
                from tensorboardX import SummaryWriter  # slow to import, and a run can do without
            except ImportError:
                _log.info("No TensorBoard files: tensorboardX is not installed (pip install tensorboardX).")
                self._tensorboard_wanted = False
                return None
            self._tensorboard = SummaryWriter(str(self.workdir / "tensorboard"), purge_step=self._purge_step)
        return self._tensorboard


def read_metrics(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """Returns the lines of a run's `metrics.jsonl`, without one that is only half written."""
    path = Path(workdir) / METRICS
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [row for line in lines if (row := _parse(line)) is not None]


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        return json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None


