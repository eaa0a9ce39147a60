"""Timing side by side: on a busy machine only ratios within one run mean anything."""

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import jax

from jaxprune.train.progress import progress
from jaxprune.viz.table import Rows, as_text, write_csv


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


def publish(title: str, rows: Rows, path: Path) -> None:
    """Prints what was measured under a title that names the device, and writes it to a CSV that does so too."""
    device = {"device": f"{jax.devices()[0].device_kind} ({platform.machine()})", "jax": jax.__version__}
    print(f"\n{title}, {device['device']}, jax {device['jax']}\n{as_text(rows)}")
    write_csv(path, rows, **device)
    print(f"written to {path}")
