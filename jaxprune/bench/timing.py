"""Interleaved timing: on a busy machine only ratios within one run are meaningful."""

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jaxprune.train import interrupt
from jaxprune.train.progress import progress

SHORTEST = 0.2  # seconds of a turn: what is shorter depends on what else the machine does at that moment


class Turn(NamedTuple):
    """Seconds of one run: wall-clock time, and CPU time of this process."""

    wall: float
    processor: float


def interleaved(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[Turn]]:
    """Times the contestants in turns, one turn each per round.

    A turn is one run that is not timed and then as many as take `SHORTEST` seconds, at least one, whose mean counts, as
    in steady state: only the first may find its buffers paged out or reused by another contestant.

    Args:
      contestants: functions that return when their work is done; each runs twice beforehand, to compile and warm up.
      rounds: number of turns per contestant.
    """
    turns: dict[str, list[Turn]] = {name: [] for name in contestants}
    with progress("timing", total=len(contestants) * (rounds + 1), unit="runs") as bar:
        for run in contestants.values():
            interrupt.check()
            run()
            run()
            bar.update(1)
        for _ in range(rounds):
            for name, run in contestants.items():
                interrupt.check()
                run()
                turns[name].append(_turn(run))
                bar.update(1)
    return turns


def _turn(run: Callable[[], object]) -> Turn:
    """Runs again and again for `SHORTEST` seconds; returns the mean of a run."""
    start, busy, runs, wall = time.perf_counter(), os.times().user, 0, 0.0
    while not runs or wall < SHORTEST:
        run()
        runs, wall = runs + 1, time.perf_counter() - start
    return Turn(wall / runs, (os.times().user - busy) / runs)


class OverRounds(NamedTuple):
    """A quantity over the rounds of a timing: its median, and the smallest and the largest value.

    With a single round there is no spread, and `low` and `high` are NaN.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "OverRounds":
        """Summarises one value per round."""
        ends = (min(values), max(values)) if len(values) > 1 else (math.nan, math.nan)
        return cls(statistics.median(values), *ends)

    @property
    def slower(self) -> bool:
        """Of a speed-up: whether it is below 1 in every round."""
        return self.median < 1 and not self.high >= 1

    @property
    def faster(self) -> bool:
        """Of a speed-up: whether it is above 1 in every round."""
        return self.median > 1 and not self.low <= 1

    def scaled(self, factor: float) -> "OverRounds":
        """Returns the quantity times a factor."""
        return OverRounds(self.median * factor, self.low * factor, self.high * factor)


def speed_up(reference: Sequence[Turn], turns: Sequence[Turn]) -> OverRounds:
    """Returns the speed-up of a contestant over a reference, computed within each round.

    Other load on the machine slows both down and cancels.
    """
    return OverRounds.of([slow.wall / fast.wall for slow, fast in zip(reference, turns, strict=True)])


def interleaved_medians(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Returns the median wall-clock seconds of each contestant; see `interleaved`."""
    turns = interleaved(contestants, rounds)
    return {name: statistics.median(turn.wall for turn in of_name) for name, of_name in turns.items()}
