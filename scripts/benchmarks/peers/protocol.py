"""The protocol of a `peers.py` process: it prints one line of JSON for each line that it reads.

The process is started with its job as JSON, answers once when its first result is ready, and then measures a burst
whenever it reads a number of seconds. Needs only NumPy.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

WARM_UP = 1  # calls before a burst, since other processes have used the CPU caches
PRODUCTS = 2


class Job:
    """A job as requested, and the times at which its parts were done, in seconds since its process was started."""

    def __init__(self, request: dict[str, Any]):
        self.request, self.done = request, {}

    def __getattr__(self, name: str) -> Any:
        return self.request[name]

    def mark(self, part: str) -> None:
        """Records that a part is done."""
        self.done[part] = time.time() - self.request["started"]

    def images(self) -> np.ndarray:
        """Returns normalised images, (b, height, width, 3)."""
        shape = (self.batch, self.side, self.side, 3)
        return np.random.default_rng(0).normal(size=shape).astype(np.float32)

    def labels(self) -> np.ndarray:
        """Returns the classes of the images."""
        return np.random.default_rng(1).integers(0, self.classes, self.batch)

    def label_maps(self) -> np.ndarray:
        """Returns the classes of the images' pixels, (b, height, width)."""
        return np.random.default_rng(1).integers(0, self.classes, (self.batch, self.side, self.side))


# The result of a job: a function that returns when its work is done, and facts about it.
Made = tuple[Callable[[], Any], dict[str, Any]]


def serve(jobs: dict[str, Callable[[Job], Made]]) -> None:
    """Runs the job given on the command line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output printed by libraries is not an answer
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
    """Repeats the call for the given time, at least once; `seconds` is the median time of a call."""
    for _ in range(WARM_UP):
        call()
    turns, end = [], time.perf_counter() + seconds
    while not turns or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        turns.append(time.perf_counter() - start)
    return {"seconds": statistics.median(turns), "calls": len(turns)}


def product_operations(side: int) -> int:
    """Returns the number of additions and multiplications of the job "products"."""
    return 2 * PRODUCTS * side**3
