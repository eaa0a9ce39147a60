"""Bits of a run's own notes that flipped: `complete.json`, `model.json` and `metrics.jsonl` of a complete run."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from flax import nnx

from attacks import Attack, Case
from attacks.mutations import flips
from jaxprune import models
from jaxprune.checkpoints.run import leave_network
from jaxprune.checkpoints.run_card import CARD, Card
from jaxprune.train import workdir
from jaxprune.train.writer import METRICS

SUMMARY = {"accuracy": 0.8125, "steps": 300, "seconds": 12.34567890123456, "data": {"source": "scenes"}, "loss": 1e-07}
_SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}


class Warnings(logging.Handler):
    """Counts the warnings of this library."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1

    def __enter__(self) -> "Warnings":
        logging.getLogger("jaxprune").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("jaxprune").removeHandler(self)


def _flipped(name: str) -> Attack:
    def cases(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
        leave_network(models.create("vit", **_SIZES, rngs=nnx.Rngs(0)), folder)
        lines = [json.dumps({"loss": 1 / step, "split": "train", "step": step}) + "\n" for step in range(1, 40)]
        (folder / METRICS).write_text("".join(lines))
        workdir.mark_complete(folder, SUMMARY)
        path = folder / name
        content = path.read_bytes()
        for bit, data in flips(content, count, seed):
            path.write_bytes(data)
            yield Case(f"bit {bit} of {name}", lambda: _is_noticed(folder))
        path.write_bytes(content)

    return cases


def _is_noticed(folder: Path) -> bool:
    """Reads what a report reads of a run; a warning, or a refusal, is that the damage was noticed."""
    with Warnings() as warnings:
        if workdir.is_complete(folder):
            workdir.read_summary(folder)
        Card.read(folder)
    return warnings.count > 0


complete = _flipped(workdir.COMPLETE)
card = _flipped(CARD)
metrics = _flipped(METRICS)
