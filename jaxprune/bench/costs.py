"""Cost and speed of contestants, and their measured against theoretical speed-up."""

from collections.abc import Mapping
from typing import Any

from jaxprune import flops
from jaxprune.bench.timing import OverRounds, interleaved, interleaved_medians, speed_up
from jaxprune.evaluate.contestants import Contestant, Runner, random_images
from jaxprune.reduction import DENSE


def costs(contestants: Mapping[str, Contestant], batch_size: int, rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each contestant: FLOPs counted and by compiler, speed, and share of the theoretical speed-up.

    Each runs on one device, to compare networks and not the sharding of batches.

    Args:
      contestants: by name; one of them is `DENSE`.
      batch_size: batch size for the throughput; the latency is for one image.
      rounds: number of timing rounds.
    """
    images = random_images(contestants[DENSE].model, batch_size)
    many = {name: Runner(c.model, images) for name, c in contestants.items()}
    turns = interleaved(many, rounds)
    seconds = {name: OverRounds.of([turn.wall for turn in own]).median for name, own in turns.items()}
    latency = interleaved_medians({name: Runner(c.model, images[:1]) for name, c in contestants.items()}, rounds)
    gflops = {name: c.gflops() for name, c in contestants.items()}
    return [
        {
            "plan": name,
            "GFLOPs": gflops[name],
            "GFLOPs compiled": flops.compiled_flops(many[name].program) / batch_size / 1e9,
            "images/s": batch_size / seconds[name],
            "latency ms": 1000 * latency[name],
            **promise(name, seconds, gflops, speed_up(turns[DENSE], turns[name])),
        }
        for name in contestants
    ]


def promise(
    name: str, seconds: Mapping[str, float], gflops: Mapping[str, float], measured: OverRounds | None = None
) -> dict[str, Any]:
    """Returns a contestant's speed-up over `DENSE`, the speed-up that FLOPs imply, their ratio and a verdict.

    Args:
      name: of the contestant.
      seconds, gflops: values by contestant.
      measured: the speed-up over timing rounds; by default computed from `seconds`, without a range.
    """
    faster, implied = seconds[DENSE] / seconds[name], gflops[DENSE] / gflops[name]
    columns = {"speed-up": faster} if measured is None else measured.columns("speed-up")
    faster = columns["speed-up"]
    kept = faster / implied
    return {**columns, "FLOP-implied": implied, "kept": kept, "verdict": verdict(name, faster, kept)}


def verdict(name: str, faster: float, kept: float) -> str:
    """Returns a verdict on a plan's speed on this machine.

    Args:
      name: of the contestant.
      faster: measured speed-up over the dense network.
      kept: measured speed-up divided by the one that FLOPs imply.
    """
    if name == DENSE:
        return "baseline"
    if faster < 1:
        return "slower than dense"
    return "as promised" if kept >= 0.9 else f"{kept:.0%} of the promise"
