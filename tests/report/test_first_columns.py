"""What one runs a command for stands in the first columns of its table of plans: a narrow page hides the others."""

import dataclasses
from importlib import import_module

from jaxprune.bench.comparison import ComparedRow
from jaxprune.commands.benchmark import page as benchmark
from jaxprune.commands.recover import page as recover
from jaxprune.commands.tune.page import TunedRow
from jaxprune.evaluate.collectors.agreement import Scores
from jaxprune.evaluate.collectors.plans import Comparison
from jaxprune.measures.intervals import Interval
from jaxprune.reduction import DENSE


class Network:
    def gflops(self):
        return 1.0


def fields(record):
    return [field.name for field in dataclasses.fields(record) if "column" in field.metadata]


def test_accuracy_speed_and_verdict_come_first():
    leaderboard = import_module("jaxprune.commands.leaderboard.run")
    assert leaderboard.SHOWN[:5] == ("network", "plan", "accuracy", "speed-up", "verdict")
    assert benchmark.COLUMNS[:4] == ("plan", "speed_up", "verdict", "accuracy")
    assert recover.COLUMNS[:5] == ("name", "speed", "accuracy", "lost", "agreement")
    assert fields(TunedRow)[:6] == ["plan", "choice", "certified", "latency", "risk", "limit"]
    assert {"plan", "gflops", "speed_up", "accuracy"} == set(fields(ComparedRow)[:4])
    scores = {DENSE: Scores(Interval(0.9, 0.8, 1.0), 1.0), "topk": Scores(Interval(0.7, 0.6, 0.8), 0.8)}
    table = Comparison(scores, {}, [], {}, 10, {}).table(dict.fromkeys(scores, Network()))
    assert list(table.columns())[:4] == ["plan", "accuracy", "accuracy − dense", "agreement"]


def test_the_difference_of_dense_from_itself_is_blank_and_one_that_is_unknown_is_not():
    nan = float("nan")
    unknown = Scores(Interval(0.7, 0.6, 0.8), 0.8, Interval(nan, nan, nan))
    scores = {DENSE: Scores(Interval(0.9, 0.8, 1.0), 1.0), "topk": unknown}
    table = Comparison(scores, {}, [], {}, 10, {}).table(dict.fromkeys(scores, Network()))
    dense, topk = table.text(ends=False).splitlines()[1:]
    assert "–" not in dense and topk.count("–") == 1
    first, second = (row["accuracy − dense"] for row in table.flat())
    assert first is None and second != second
