"""Timing side by side: on a busy machine only ratios within one run mean anything."""

import statistics
import time
from collections.abc import Callable, Mapping

from jaxprune.train.progress import progress


def interleaved_medians(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Returns the median seconds of each contestant; in every round each of them has a turn.

    A turn is two runs, of which the second is timed: steps and batches follow one another in real work, and only the
    first of them finds its buffers paged out or in another contestant's hands.

    Args:
      contestants: functions that return when their work is done; each runs twice beforehand, to compile and warm up.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    with progress("timing", total=len(contestants) * (rounds + 1)) as bar:
        for run in contestants.values():
            run()
            run()
            bar.update(1)
        for _ in range(rounds):
            for name, run in contestants.items():
                run()
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
                bar.update(1)
    return {name: statistics.median(values) for name, values in seconds.items()}
