"""Timing in turns, speed-ups over rounds, and the verdict on them."""

import time

import numpy as np
import pytest

from jaxprune.bench import timing
from jaxprune.bench.costs import promise
from jaxprune.bench.timing import OverRounds, Turn, interleaved_medians, speed_up


def test_a_speed_up_is_held_against_the_flops():
    seconds, gflops = {"dense": 2.0, "half": 1.0, "slow": 4.0, "part": 1.25}, {"dense": 4.0, "half": 2.0}
    gflops |= {"slow": 2.0, "part": 2.0}
    words = {name: promise(name, seconds, gflops).verdict for name in seconds}
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


def test_short_runs_are_repeated_until_a_turn_is_long_enough(monkeypatch):
    monkeypatch.setattr(timing, "SHORTEST", 0.05)
    runs = []
    turns = timing.interleaved({"short": lambda: runs.append(time.sleep(0.001))}, 3)["short"]
    assert len(runs) > 3 * 10 and all(0.001 <= turn.wall < 0.05 for turn in turns)
    long = timing.interleaved({"long": lambda: time.sleep(0.06)}, 2)["long"]
    assert len(long) == 2 and all(turn.wall >= 0.06 for turn in long)


def test_speed_ups_have_the_range_of_their_rounds():
    dense, fast = ([Turn(wall, 0) for wall in walls] for walls in ((2.0, 4.0, 3.0), (1.0, 1.0, 2.0)))
    assert speed_up(dense, fast) == (2.0, 1.5, 4.0)
    single = OverRounds.of([3.43])
    assert single.median == 3.43 and np.isnan([single.low, single.high]).all()


@pytest.mark.parametrize(
    ("rounds", "slower", "faster"),
    [
        ((0.8, 0.9, 0.95), True, False),
        ((0.8, 0.9, 1.0), False, False),
        ((1.0, 1.1, 1.2), False, False),
        ((1.01, 1.1, 1.2), False, True),
        ((0.9,), True, False),
    ],
)
def test_a_speed_up_is_one_if_it_is_in_every_round(rounds, slower, faster):
    speed = OverRounds.of(rounds)
    assert (speed.slower, speed.faster) == (slower, faster)
