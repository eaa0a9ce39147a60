"""A winner is named only where its interval overlaps no other one."""

import math

import pytest

from jaxprune.errors import UserError
from jaxprune.measures.intervals import Interval
from jaxprune.measures.leaders import leaders

NAN = math.nan


def around(value, half):
    return Interval(value, value - half, value + half)


@pytest.mark.parametrize(
    ("intervals", "better", "names"),
    [
        ({"a": around(0.8, 0.1), "b": around(0.55, 0.1)}, "max", ["a"]),
        ({"b": around(0.65, 0.1), "a": around(0.8, 0.1)}, "max", ["a", "b"]),
        ({"a": around(0.75, 0.25), "b": around(0.25, 0.25)}, "max", ["a", "b"]),  # they touch
        ({"a": around(0.8, 0.1), "b": around(0.55, 0.1)}, "min", ["b"]),
        ({"a": around(0.8, 0.1), "b": around(0.65, 0.1), "c": around(0.5, 0.1)}, "max", ["a", "b"]),
        ({"a": Interval(0.8, NAN, NAN), "b": around(0.1, 0.01)}, "max", ["a", "b"]),  # a single round
        ({"a": around(0.8, 0.01), "b": Interval(0.1, NAN, NAN)}, "max", ["a", "b"]),
        ({"a": Interval(NAN, NAN, NAN), "b": around(0.1, 0.01)}, "max", ["b"]),
        ({}, "max", []),
    ],
)
def test_all_that_may_be_the_best_are_named(intervals, better, names):
    assert leaders(intervals, better) == names


def test_an_unknown_direction_is_refused():
    with pytest.raises(UserError, match="'most'"):
        leaders({}, "most")
