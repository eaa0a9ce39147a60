"""The speed of networks that spend by image, under the thresholds of each row of their table."""

import dataclasses

import numpy as np

from jaxprune.bench.timing import OverRounds, interleaved
from jaxprune.dynamic import Engine, Segmented
from jaxprune.report.table import Table

ROUNDS = 5


def timed(model: Segmented, rows: Table, images: np.ndarray, *, batch_size: int = 32, rounds: int = ROUNDS) -> Table:
    """Adds the speed with which `dynamic.Engine` runs images under the thresholds of each row, all in turns.

    Gates are not skipped in fact, so that a network with gates has the speed of one that computes everything.

    Args:
      rows: from `evaluate.spending.points`.
      images: uint8 (n, h, w, 3).
      batch_size: the largest number of images that are computed together.
      rounds: over which the median is taken.
    """
    engine = Engine(model, rows[0].thresholds, batch_size=batch_size, remainder="hold")
    engines = {row.leaving: engine.under(row.thresholds) for row in rows}
    turns = interleaved({name: lambda one=one: one(images) for name, one in engines.items()}, rounds)
    speeds = {name: OverRounds.of([len(images) / turn.wall for turn in group]) for name, group in turns.items()}
    return rows.of(dataclasses.replace(row, speed=tuple(speeds[row.leaving])) for row in rows)
