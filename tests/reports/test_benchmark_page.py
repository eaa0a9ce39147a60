"""What `benchmark` writes: cost and speed of plans side by side, and its verdict on each."""

import itertools
import time
from importlib import import_module
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
from flax import nnx
from written_pages import read_page

from jaxprune.bench import costs as bench_costs
from jaxprune.bench.costs import BenchmarkRow
from jaxprune.bench.timing import OverRounds
from jaxprune.evaluate.collectors import plans
from jaxprune.evaluate.collectors.agreement import Scores
from jaxprune.measures.intervals import Interval
from jaxprune.preprocessing import Preprocessing
from jaxprune.report.table import Table

# The packages of the commands have functions of the same name.
benchmark = import_module("jaxprune.commands.benchmark.run")

GFLOPS = {"dense": 4.0, "topk": 2.5, "tome": 3.0, "random": 2.0}
SECONDS = {"dense": 0.25, "topk": 0.125, "tome": 0.3125, "random": 0.25 / 1.2}  # of a batch of 8
SCORES = {
    "dense": Scores(Interval(0.8, 0.72, 0.86), agreement=1.0),
    "topk": Scores(Interval(0.75, 0.67, 0.82), agreement=0.9, difference=Interval(-0.05, -0.08, -0.02)),
    "tome": Scores(Interval(0.775, 0.69, 0.84), agreement=0.95),
    "random": Scores(Interval(0.5, 0.41, 0.59), agreement=0.55),
}


def timed(plan):
    """The row of a plan over three rounds: at its median speed, a tenth slower and a fifth faster."""
    faster = SECONDS["dense"] / SECONDS[plan]
    over = OverRounds.of([0.9 * faster, faster, 1.2 * faster]) if plan != "dense" else OverRounds.of([1.0, 1.0, 1.0])
    return bench_costs.PlanCost(
        plan=plan,
        gflops=GFLOPS[plan],
        gflops_compiled=1.1 * GFLOPS[plan],
        images_per_second=8 / SECONDS[plan],
        latency=1000 * SECONDS[plan] / 4,
        promise=bench_costs.promise(plan, SECONDS, GFLOPS, over),
    )


def written(tmp_path, monkeypatch, measured, **settings):
    monkeypatch.setattr(benchmark, "measure", lambda config, workdir: measured)
    config = SimpleNamespace(plans=tuple(GFLOPS)[1:], batch_size=8, rounds=3, scorer="", run="", **settings)
    summary = benchmark.run(config, tmp_path)
    return read_page(tmp_path / "report.html"), summary


def test_plans_with_accuracy(tmp_path, monkeypatch):
    found = plans.Comparison(SCORES, {}, [], {}, 120, {})
    rows = Table(BenchmarkRow(timed(plan), found.result(plan)) for plan in GFLOPS)
    measured = benchmark.Measured("runs/vit", rows, found, class_names="abcdefghij")
    page, summary = written(tmp_path, monkeypatch, measured)
    assert (page.title, page.subtitle, list(page.parts)) == ("jaxprune benchmark", "runs/vit", ["Plans side by side"])
    part = page.parts["Plans side by side"]
    (table,) = part.tables
    assert table.caption == (
        "Speed-up: median over 3 rounds with the smallest and the largest value. Accuracy: in brackets the 95 % "
        "interval (Wilson); the difference from dense is paired by image (95 %, Agresti and Min); n = 120 images."
    )
    # Top-K is twice as fast with 4 / 2.5 = 1.6 times fewer operations: measured ÷ implied is 1.25. Random is
    # 1.2 times as fast with half of them.
    assert table.lines == [
        "plan | speed-up | verdict | accuracy | accuracy − dense | agreement | images/s | latency ms | GFLOPs | "
        "GFLOPs compiled | FLOP-implied | measured ÷ implied",
        "dense | 1 (1–1) | baseline | 80.0% (72.0%–86.0%) | – | 100.0% | 32 | 62.5 | 4 | 4.4 | 1 | 1",
        "topk | 2 (1.8–2.4) * | as promised | 75.0% (67.0%–82.0%) | -5.0% (-8.0% to -2.0%) | "
        "90.0% | 64 | 31.2 | 2.5 | 2.75 | 1.6 | 1.25",
        "tome | 0.8 (0.72–0.96) | slower than dense | 77.5% (69.0%–84.0%) | – | "
        "95.0% | 25.6 | 78.1 | 3 | 3.3 | 1.33 | 0.6",
        "random | 1.2 (1.08–1.44) | 60% of the promise | 50.0% (41.0%–59.0%) | – | "
        "55.0% | 38.4 | 52.1 | 2 | 2.2 | 2 | 0.6",
    ]
    assert part.notes == ["Slower than the dense model on this machine: tome."]
    assert part.figures[0].caption == (
        "None of the plans stands out in accuracy: the intervals of tome (77.5%) and topk (75.0%) overlap; the "
        "cheapest of them is topk, with 2.5 GFLOPs. dense has 80.0% [72.0%, 86.0%] with 4; topk minus dense: -5.0% "
        "[-8.0%, -2.0%], paired by image. The grey line joins the highest values measured at each cost."
    )
    assert {"GFLOPs", "accuracy", "chance (0.1)"} <= set(part.figures[0].labels)
    assert part.texts[0].startswith("Batch 8 on cpu, medians of 3 rounds, each timing every plan once.")
    assert part.commands == ["python -m jaxprune.main --config=configs/x.py"]
    assert summary == {"plans": 3, "fastest": "topk", "speed-up": 2.0}


def test_plans_without_images_are_drawn_by_their_speed_up(tmp_path, monkeypatch):
    rows = Table(BenchmarkRow(timed(plan)) for plan in ("dense", "random", "topk"))
    page, _ = written(tmp_path, monkeypatch, benchmark.Measured("vit", rows, None, class_names=()))
    part = page.parts["Plans side by side"]
    (table,), (plot,) = part.tables, part.figures
    assert "Accuracy" not in table.caption and table.header[:3] == ["plan", "speed-up", "verdict"] and part.notes == []
    assert plot.caption == (
        "The highest speed-up of the plans is that of topk: 2.00 [1.80, 2.40], with 2.5 GFLOPs. dense has 1.00 [1.00, "
        "1.00] with 4. The grey line joins the highest values measured at each cost."
    )


def test_no_line_is_spoken_of_that_is_not_drawn(tmp_path, monkeypatch):
    """Top-K costs less than the dense network and is faster: the front is one point."""
    rows = Table(BenchmarkRow(timed(plan)) for plan in ("dense", "topk"))
    page, _ = written(tmp_path, monkeypatch, benchmark.Measured("vit", rows, None, class_names=()))
    (plot,) = page.parts["Plans side by side"].figures
    assert plot.caption == ("topk: speed-up 2.00 [1.80, 2.40], with 2.5 GFLOPs. dense has 1.00 [1.00, 1.00] with 4.")


class Toy(nnx.Module):
    """A network of one product for each value of its images: 2 · 2 · 3 multiply-accumulates an image."""

    def __init__(self):
        self.preprocessing = Preprocessing((2, 2))
        self.weight = nnx.Param(jnp.ones((12, 1)))

    def __call__(self, images):
        return images.reshape(len(images), 12) @ self.weight[...], None


def test_speeds_are_images_a_second_and_milliseconds_an_image(monkeypatch):
    contestants = {
        name: SimpleNamespace(model=Toy(), gflops=lambda cost=GFLOPS[name]: cost) for name in ("dense", "topk")
    }
    # Seconds of each turn, in which dense goes first: three rounds with batches, then three with single images.
    turns = [(8, 2), (4, 4), (6, 3), (0.5, 0.25), (0.5, 0.125), (1, 0.125)]
    ends = itertools.chain.from_iterable((0, seconds) for seconds in itertools.chain.from_iterable(turns))
    monkeypatch.setattr(time, "perf_counter", ends.__next__)
    dense, topk = bench_costs.costs(contestants, batch_size=4, rounds=3)
    monkeypatch.undo()
    # Medians of batches: 6 and 3 seconds; of images .5 and .125. Rounds are 4, 1 and 2 times as fast.
    assert (dense.images_per_second, topk.images_per_second) == pytest.approx((4 / 6, 4 / 3))
    assert (dense.latency, topk.latency) == (500, 125)
    assert topk.promise == bench_costs.Promise(OverRounds(2, 1, 4), 1.6, 1.25, "no clear difference")
    assert dense.promise.speed_up[:2] == (1, 1) and dense.promise.implied == 1
    assert (dense.gflops, topk.gflops) == (4.0, 2.5)
    assert topk.gflops_compiled == pytest.approx(12e-9)
