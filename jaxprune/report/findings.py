"""Sentences on who has the best value, the only place of a report that may name one: see `measures.leaders`."""

import math
from collections.abc import Mapping

from jaxprune.measures.intervals import Interval
from jaxprune.measures.leaders import leaders

_NAMED = 3  # of those that overlap; the others are counted
_WORDS = {"max": "highest", "min": "lowest"}


def finding(
    intervals: Mapping[str, Interval], value: str, *, of: str = "plans", better: str = "max", spec: str = ".1%"
) -> str:
    """Returns a sentence, without its full stop: who has the best value, or that nobody stands out.

    >>> finding({"a": Interval(0.8, 0.7, 0.9), "b": Interval(0.5, 0.4, 0.6)}, "accuracy")
    'The highest accuracy of the plans is that of a: 80.0% [70.0%, 90.0%]'
    >>> finding({"a": Interval(0.8, 0.7, 0.9), "b": Interval(0.75, 0.65, 0.85)}, "accuracy")
    'None of the plans stands out in accuracy: the intervals of a (80.0%) and b (75.0%) overlap'

    Args:
      intervals: {name: value with its interval}, at least one.
      value: what the values are, in words.
      of: what the names are of, in the plural.
      better: "max" or "min".
      spec: the format specification of the values.
    """
    first, *level = leaders(intervals, better) or list(intervals)
    if len(intervals) == 1:
        return f"{first}: {value} {with_interval(intervals[first], spec)}"
    if not level:
        return f"The {_WORDS[better]} {value} of the {of} is that of {first}: {with_interval(intervals[first], spec)}"
    show = lambda name: f"{name} ({intervals[name].value:{spec}})"
    if len(level) < _NAMED:
        overlapping = f"{', '.join(map(show, [first, *level[:-1]]))} and {show(level[-1])}"
    else:
        overlapping = f"{show(first)} and {len(level)} others, to {show(level[-1])},"
    return f"None of the {of} stands out in {value}: the intervals of {overlapping} overlap"


def with_interval(interval: Interval, spec: str = ".1%") -> str:
    """Returns a value with the ends of its interval, where they are known.

    >>> with_interval(Interval(0.5, 0.4, 0.6))
    '50.0% [40.0%, 60.0%]'
    """
    if math.isnan(interval.low) or math.isnan(interval.high):
        return f"{interval.value:{spec}}"
    return f"{interval.value:{spec}} [{interval.low:{spec}}, {interval.high:{spec}}]"


def standing_out(intervals: Mapping[str, Interval], better: str = "max") -> str:
    """Returns the name of the best value for the summary of a run, or "none" where its interval overlaps another.

    >>> standing_out({"a": Interval(0.8, 0.7, 0.9), "b": Interval(0.75, 0.65, 0.85)})
    'none'
    """
    best = leaders(intervals, better)
    return best[0] if len(best) == 1 else "none"
