"""Cost and speed of contestants, and their measured against theoretical speed-up."""

import dataclasses
from collections.abc import Callable, Mapping
from math import nan
from typing import Any

import jax

from jaxprune import flops
from jaxprune.bench.timing import OverRounds, interleaved, interleaved_medians, speed_up
from jaxprune.evaluate.collectors.plans import PlanResult
from jaxprune.evaluate.contestants import Contestant, Runner, random_images, runner
from jaxprune.measures.intervals import Interval
from jaxprune.nn import attention_kernels
from jaxprune.reduction import DENSE
from jaxprune.report.table import column


@dataclasses.dataclass(frozen=True)
class Promise:
    """A contestant's speed-up over the dense network, against the one that its FLOPs promise.

    Attributes:
      speed_up: measured, over the timing rounds, or as one number.
      implied: the speed-up that FLOPs imply.
      ratio: measured divided by implied.
      verdict: see `verdict`.
    """

    speed_up: OverRounds | float = column("speed-up", format=".3g", best="max")
    implied: float = column("FLOP-implied", format=".3g")
    ratio: float = column("measured ÷ implied", format=".3g")
    verdict: str = column("verdict")

    @property
    def factor(self) -> float:
        """The speed-up as one number, the median over the rounds."""
        return self.speed_up.median if isinstance(self.speed_up, OverRounds) else self.speed_up

    @property
    def range(self) -> Interval:
        """The speed-up with its range over the rounds; ends are NaN where there is none."""
        return Interval(*self.speed_up) if isinstance(self.speed_up, OverRounds) else Interval(self.speed_up, nan, nan)

    @property
    def slower(self) -> bool:
        """Whether the contestant is slower than the dense network in every round."""
        return OverRounds(*self.range).slower

    @property
    def faster(self) -> bool:
        """Whether the contestant is faster than the dense network in every round."""
        return OverRounds(*self.range).faster


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanCost:
    """The cost of a contestant: FLOPs counted and by the compiler, speed, and share of the theoretical speed-up."""

    plan: str = column("plan")
    gflops: float = column("GFLOPs", format=".3g")
    gflops_compiled: float = column("GFLOPs compiled", format=".3g")
    images_per_second: float = column("images/s", format=".3g")
    latency: float = column("latency", "ms", format=".3g")
    promise: Promise


@dataclasses.dataclass(frozen=True)
class BenchmarkRow:
    """The cost of a contestant and, if there are images, its result on them."""

    cost: PlanCost
    result: PlanResult | None = None


def costs(
    contestants: Mapping[str, Contestant],
    batch_size: int,
    rounds: int,
    *,
    images: Callable[[Any, int], jax.Array] = random_images,
    gflops: Mapping[str, float] | None = None,
) -> list[PlanCost]:
    """Returns the cost of each contestant.

    Each runs on one device, to compare networks and not the sharding of batches.

    Args:
      contestants: by name; one of them is `DENSE`.
      batch_size: batch size for the throughput; the latency is for one image.
      rounds: number of timing rounds.
      images: (network, number) -> that many normalised images of its size; a network with exits is as fast as they let
        it be.
      gflops: {name: multiply-accumulates of an image in 10⁹}; by default counted, without what depends on the image.
    """
    of_batch = lambda batch: {name: runner(c.model, images(c.model, batch)) for name, c in contestants.items()}
    runners = of_batch(batch_size)
    turns = interleaved(runners, rounds)
    seconds = {name: OverRounds.of([turn.wall for turn in of_name]).median for name, of_name in turns.items()}
    latency = interleaved_medians(of_batch(1), rounds)
    gflops = gflops or {name: c.gflops() for name, c in contestants.items()}
    compiled = lambda name: _compiled_flops(runners[name].program, contestants[name].model, images, batch_size)
    return [
        PlanCost(
            plan=name,
            gflops=gflops[name],
            gflops_compiled=compiled(name) / batch_size / 1e9,
            images_per_second=batch_size / seconds[name],
            latency=1000 * latency[name],
            promise=promise(name, seconds, gflops, speed_up(turns[DENSE], turns[name])),
        )
        for name in contestants
    ]


def _compiled_flops(program: Any, model: Any, images: Callable[[Any, int], jax.Array], batch_size: int) -> float:
    """XLA's count for a batch; NaN without a program."""
    if program is None:
        return nan
    if " while(" in program.as_text():  # its body counts once, such as that of attention in blocks
        with attention_kernels.implementation("plain"):
            program = runner(model, images(model, batch_size)).program
    return flops.compiled_flops(program)


def speeds(networks: Mapping[str, Any], batch_size: int, rounds: int) -> dict[str, OverRounds]:
    """Returns the speed-up of each network over the first, on one device, timed in turns, one turn each per round."""
    runners = {name: Runner(model, random_images(model, batch_size)) for name, model in networks.items()}
    turns = interleaved(runners, rounds)
    first = next(iter(networks))
    return {name: speed_up(turns[first], of_network) for name, of_network in turns.items()}


def promise(
    name: str, seconds: Mapping[str, float], gflops: Mapping[str, float], measured: OverRounds | None = None
) -> Promise:
    """Returns a contestant's speed-up over `DENSE`, the speed-up that FLOPs imply, their ratio and a verdict.

    Args:
      name: of the contestant.
      seconds, gflops: values by contestant.
      measured: the speed-up over timing rounds; by default computed from `seconds`, without a range.
    """
    faster = seconds[DENSE] / seconds[name] if measured is None else measured
    implied = gflops[DENSE] / gflops[name]
    promise = Promise(faster, implied, float("nan"), "")
    ratio = promise.factor / implied
    return dataclasses.replace(promise, ratio=ratio, verdict=verdict(name, promise.range, ratio))


def verdict(name: str, faster: Interval, ratio: float) -> str:
    """Returns a verdict on a plan's speed on this machine.

    >>> verdict("topk", Interval(0.97, 0.9, 1.05), 0.6)
    'no clear difference'

    Args:
      name: of the contestant.
      faster: measured speed-up over the dense network, with its range over the rounds.
      ratio: measured speed-up divided by the one that FLOPs imply.
    """
    if name == DENSE:
        return "baseline"
    over_rounds = OverRounds(*faster)
    if over_rounds.slower:
        return "slower than dense"
    if not over_rounds.faster:
        return "no clear difference"
    return "as promised" if ratio >= 0.9 else f"{ratio:.0%} of the promise"
