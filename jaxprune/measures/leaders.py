"""Which values stand out: the one rule by which a table or a sentence may name a winner."""

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

from jaxprune.errors import unknown
from jaxprune.measures.intervals import Interval

Name = TypeVar("Name", bound=Hashable)


def leaders(intervals: Mapping[Name, Interval], better: str = "max") -> list[Name]:
    """Returns who may have the best value: the one that has it, then all whose intervals overlap its, best first.

    A single name stands out. An end that is NaN is not known, so its interval overlaps all others.

    >>> leaders({"a": Interval(0.8, 0.7, 0.9), "b": Interval(0.75, 0.65, 0.85), "c": Interval(0.5, 0.4, 0.6)})
    ['a', 'b']
    >>> leaders({"a": Interval(0.8, 0.7, 0.9), "c": Interval(0.5, 0.4, 0.6)})
    ['a']

    Args:
      intervals: {name: value with its interval}; values that are NaN are left out.
      better: "max" or "min".

    Raises:
      UserError: `better` is neither.
    """
    if better not in ("max", "min"):
        raise unknown("direction", better, ("max", "min"))
    sign = 1 if better == "max" else -1
    finite = {name: interval for name, interval in intervals.items() if not math.isnan(interval.value)}
    order = sorted(finite, key=lambda name: -sign * finite[name].value)
    if not order:
        return []
    first = _ends(finite[order[0]])
    return [name for name in order if _overlap(first, _ends(finite[name]))]


def _ends(interval: Interval) -> tuple[float, float]:
    unknown_as = lambda end, bound: bound if math.isnan(end) else end
    return unknown_as(interval.low, -math.inf), unknown_as(interval.high, math.inf)


def _overlap(first: tuple[float, float], second: tuple[float, float]) -> bool:
    return first[0] <= second[1] and second[0] <= first[1]
