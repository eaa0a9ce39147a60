"""The meaning of "±" and of ranges, in words, for captions of tables and tiles."""

from collections.abc import Mapping, Sequence
from typing import Any

WILSON = "half the 95 % interval (Wilson)"
STUDENT = "half the 95 % interval (Student's t)"
STANDARD_ERROR = "the standard error of the mean"
BRACKETS = "in brackets the 95 % interval (Wilson)"


def meaning(kind: str, count: int | None = None, of: str = "images") -> str:
    """Returns the meaning of "±" in a table.

    >>> meaning(STANDARD_ERROR, 12)
    '± = the standard error of the mean over 12 images'

    Args:
      kind: `WILSON`, `STUDENT` or `STANDARD_ERROR`.
      count: number of values; None if it differs between rows.
      of: what the values are over, in the plural.
    """
    if count == 1 and kind != WILSON:
        return f"no ±: it needs more than one of the {of}"
    return f"± = {kind} over {'the row’s' if count is None else count} {of}"


def of_share(low: float, high: float, count: int) -> str:
    """Returns the 95 % interval of a share of images as text, with its meaning.

    >>> of_share(0.33, 0.596, 50)
    '33.0% to 59.6%: 95 % interval (Wilson) over 50 images'
    """
    return f"{low:.1%} to {high:.1%}: 95 % interval (Wilson) over {count} images"


def ranges(rounds: int) -> str:
    """Returns the meaning of the ranges in a table of timings."""
    if rounds == 1:
        return "measured in a single round, so there is no spread: other load on the machine may have affected a number"
    return f"median over {rounds} rounds with the smallest and the largest value"


def as_ranges(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merges the ends of ranges into the cells of their centres, for the table of a report.

    >>> as_ranges([{"speed-up": 1.5, "speed-up low": 1.25, "speed-up high": 1.75}])
    [{'speed-up': (1.5, 1.25, 1.75)}]

    Args:
      rows: with columns "`name` low" and "`name` high" beside `name`; plain "low" and "high" belong to "accuracy".
    """
    return [_as_ranges(row) for row in rows]


def _as_ranges(row: Mapping[str, Any]) -> dict[str, Any]:
    ends = {name: (f"{name} low", f"{name} high") for name in row if f"{name} low" in row}
    if "accuracy" in row and "low" in row:
        ends["accuracy"] = ("low", "high")
    inside = {end for pair in ends.values() for end in pair}
    cell = lambda name: (row[name], *(row[end] for end in ends[name])) if name in ends else row[name]
    return {name: cell(name) for name in row if name not in inside}
