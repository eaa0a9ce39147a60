"""What a process of `benchmark_peers` speaks: JSON lines on its standard output, one for each line that it reads.

It is started with its job as JSON, answers once when its first result is there, and then measures a burst whenever it
reads a number of seconds. Needs NumPy only.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

WARM_UP = 1  # calls before a burst: other processes have had the caches
PRODUCTS = 2


class Job:
    """A job as it was asked for, and when its parts were done, in seconds since its process was started."""

    def __init__(self, asked: dict[str, Any]):
        self.asked, self.done = asked, {}

    def __getattr__(self, name: str) -> Any:
        return self.asked[name]

    def mark(self, part: str) -> None:
        """Notes that a part is done."""
        self.done[part] = time.time() - self.asked["started"]

    def images(self) -> np.ndarray:
        """Normalised images, (b, height, width, 3)."""
        shape = (self.batch, self.side, self.side, 3)
        return np.random.default_rng(0).normal(size=shape).astype(np.float32)

    def labels(self) -> np.ndarray:
        """Their classes."""
        return np.random.default_rng(1).integers(0, self.classes, self.batch)


# What a job makes: a call that returns when its work is done, and facts about it.
Made = tuple[Callable[[], Any], dict[str, Any]]


def serve(jobs: dict[str, Callable[[Job], Made]]) -> None:
    """Does the job that the command line asks for."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    say = lambda **answer: print(json.dumps(answer), file=answers, flush=True)
    job = Job(json.loads(sys.argv[1]))
    job.mark("started")
    call, facts = jobs[job.task](job)
    result = call()
    job.mark("first result")
    if isinstance(result, np.ndarray):
        facts["result"] = np.asarray(result, np.float64).round(7).tolist()
    say(facts=facts, seconds=job.done)
    for line in sys.stdin:
        say(**burst(call, float(line)))


def burst(call: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """Calls again and again for so long, once at least; `seconds` is the median of a call's."""
    for _ in range(WARM_UP):
        call()
    turns, end = [], time.perf_counter() + seconds
    while not turns or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        turns.append(time.perf_counter() - start)
    return {"seconds": statistics.median(turns), "calls": len(turns)}


def product_operations(side: int) -> int:
    """Additions and multiplications of the job "products"."""
    return 2 * PRODUCTS * side**3
