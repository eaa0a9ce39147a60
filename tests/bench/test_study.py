"""Arms over seeds, their intervals, and what is written about them."""

import csv

import numpy as np
import pytest

from jaxprune.bench import study
from jaxprune.bench.costs import promise
from jaxprune.bench.timing import OverRounds, Turn, interleaved_medians, speed_up
from jaxprune.measures.intervals import student_interval

VALUES = {"plain": [1.0, 1.1, 0.9], "better": [3.0, 3.1, 2.9], "close": [1.1, 1.0, 1.2]}


def measured():
    return study.over_seeds(VALUES, 3, lambda arm, seed: {"accuracy": VALUES[arm][seed], "loss": 1.0 + seed})


def test_every_arm_is_measured_with_every_seed():
    found = measured()
    assert [row["accuracy"] for row in found["better"]] == VALUES["better"]
    rows = study.intervals(found)
    assert list(rows[0]) == ["method", "accuracy", "± accuracy", "loss", "± loss"]
    assert (rows[1]["accuracy"], rows[1]["± accuracy"]) == pytest.approx(student_interval(VALUES["better"]))
    single = study.intervals({arm: [{"accuracy": value} for value in own] for arm, own in VALUES.items()}, "arm")
    assert list(single[0]) == ["arm", "accuracy", "±"]


def test_only_intervals_that_part_make_a_difference():
    assert study.differences(measured()) == ["accuracy: better above plain.", "accuracy: better above close."]
    assert study.differences({"a": [{"x": 1.0}, {"x": 2.0}], "b": [{"x": 1.5}, {"x": 1.7}]}) == [
        "All intervals overlap, in every measure."
    ]


def test_differences_are_taken_seed_by_seed():
    (row,) = study.paired(measured(), [("better", "plain")])
    assert row["difference"] == "better - plain"
    # All seeds differ by the same, however much they differ among themselves.
    assert (row["accuracy"], row["± accuracy"]) == (pytest.approx(2.0), pytest.approx(0.0, abs=1e-9))
    close, plain = VALUES["close"], VALUES["plain"]
    (row,) = study.paired(measured(), [("close", "plain")])
    expected = student_interval([a - b for a, b in zip(close, plain, strict=True)])
    assert (row["accuracy"], row["± accuracy"]) == pytest.approx(expected)


def test_a_study_leaves_tables_and_a_report(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["scripts/study.py", "--seeds=3"])
    rows = study.intervals(measured())
    with study.published(tmp_path / "out", "A study", "Arms", {"arms": rows}) as section:
        section.table(rows)
    with (tmp_path / "out" / "arms.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [row["method"] for row in found] == list(VALUES) and all(row["device"] and row["jax"] for row in found)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "A study" in page and "--seeds=3" in page
    assert f"A study, {found[0]['device']}" in capsys.readouterr().out


def test_a_speed_up_is_held_against_the_flops():
    seconds, gflops = {"dense": 2.0, "half": 1.0, "slow": 4.0, "part": 1.25}, {"dense": 4.0, "half": 2.0}
    gflops |= {"slow": 2.0, "part": 2.0}
    words = {name: promise(name, seconds, gflops)["verdict"] for name in seconds}
    assert words == {
        "dense": "baseline",
        "half": "as promised",
        "slow": "slower than dense",
        "part": "80% of the promise",
    }


def test_contestants_take_turns():
    order = []
    medians = interleaved_medians({name: lambda name=name: order.append(name) for name in "ab"}, 2)
    assert "".join(order) == "aabb" + "aabb" * 2
    assert set(medians) == {"a", "b"} and all(np.isfinite(value) for value in medians.values())


def test_speed_ups_have_the_range_of_their_rounds():
    dense, fast = ([Turn(wall, 0) for wall in walls] for walls in ((2.0, 4.0, 3.0), (1.0, 1.0, 2.0)))
    assert speed_up(dense, fast) == (2.0, 1.5, 4.0)
    assert speed_up(dense, fast).columns("x") == {"x": 2.0, "x low": 1.5, "x high": 4.0}
    single = OverRounds.of([3.43])
    assert single.median == 3.43 and np.isnan([single.low, single.high]).all()
