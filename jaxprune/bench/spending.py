"""The speed of networks that spend by image, under the thresholds of each row of their table."""

import dataclasses

import numpy as np

from jaxprune.bench.timing import OverRounds, interleaved
from jaxprune.dynamic import Engine, Segmented
from jaxprune.dynamic.exit_policy import EVERYBODY, NOBODY
from jaxprune.report.table import Table, column

ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class ExitSpeed:
    """The speed at which images leave at one exit.

    Attributes:
      leaving: that exit, from 1.
      cost: multiply-accumulates of an image, in units of 10⁹.
      speed: images a second: median, least and most of some rounds.
    """

    leaving: str = column("images leave")
    cost: float = column("cost", "GMAC", format=".4g")
    speed: tuple[float, float, float] = column("images/s", format=".4g", ends=("least", "most"))


def exit_speeds(model: Segmented, images: np.ndarray, *, batch_size: int = 32, rounds: int = ROUNDS) -> Table:
    """Returns a row for each exit, with the speed of `dynamic.Engine` when all images leave there, in turns.

    Args:
      images, batch_size, rounds: see `timed`.
    """
    exits = len(model.segments())
    only = lambda exit: [EVERYBODY if index >= exit else NOBODY for index in range(exits)]
    engine = Engine(model, only(0), batch_size=batch_size)
    engines = {exit: engine.under(only(exit)) for exit in range(exits)}
    turns = interleaved({exit: lambda engine=engine: engine(images) for exit, engine in engines.items()}, rounds)
    speeds = [OverRounds.of([len(images) / turn.wall for turn in turns[exit]]) for exit in range(exits)]
    rows = zip(model.costs(), speeds, strict=True)
    return Table(ExitSpeed(f"all at exit {exit + 1}", cost, tuple(speed)) for exit, (cost, speed) in enumerate(rows))


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
    turns = interleaved({name: lambda engine=engine: engine(images) for name, engine in engines.items()}, rounds)
    speeds = {name: OverRounds.of([len(images) / turn.wall for turn in group]) for name, group in turns.items()}
    return rows.of(dataclasses.replace(row, speed=tuple(speeds[row.leaving])) for row in rows)
