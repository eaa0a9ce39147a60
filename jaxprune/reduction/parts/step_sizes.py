"""How much a step of a plan keeps: a fraction of the patches, a number of them, or all but a number of rows."""

import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxprune.errors import UserError, quoted

_LARGEST = 2**62  # whole number that fits the integers of arrays


def plain(value: Any) -> Any:
    """Returns an argument of a plan in Python's numbers, and several of them as a tuple.

    >>> plain([1, range(2)]), plain(np.arange(2)), plain(np.float64(0.5)), plain("mean")
    ((1, (0, 1)), (0, 1), 0.5, 'mean')
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(map(plain, value)) if isinstance(value, list | tuple | range) else value


def number(name: str, value: Any) -> Any:
    """Returns the value if it is a number; True and "0.5" are not.

    Raises:
      UserError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise UserError(
            f"{name} {quoted(value)} is not a number: write one, such as {'0.7' if name == 'keep_rate' else '8'}."
        )
    if isinstance(value, numbers.Integral) and abs(int(value)) > _LARGEST:
        raise UserError(f"{name} {quoted(value)} is too large: write a number such as 8.")
    return value


def whole(name: str, value: Any) -> int:
    """Returns the value as an int if it is a whole number.

    Raises:
      UserError: it is something else.
    """
    if not math.isfinite(number(name, value)):
        raise UserError(f"{name} {quoted(value)} is not a whole number: use one such as 8.")
    if value != int(value):
        raise UserError(f"{name} {quoted(value)} is not a whole number: use {int(value)} or {int(value) + 1}.")
    return int(value)


@dataclass(frozen=True)
class Rate:
    """Keeps `int(patches * rate)`, the product in double precision and truncated."""

    rate: float | int
    name = "keep_rate"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", float(number("keep_rate", self.rate)))
        if not 0.0 < self.rate <= 1.0:
            nearest = 0.05 if not self.rate > 0 else 1.0
            raise UserError(f"keep_rate {self.rate} is outside (0, 1]: use {nearest}.")

    @property
    def value(self) -> float:
        return self.rate

    def tokens(self, arriving: int, patches: int) -> int:
        """Number of tokens to leave of those that arrive, where the image has that many patches."""
        return min(int(patches * self.rate), arriving)


@dataclass(frozen=True)
class Count:
    """Keeps a fixed number of rows."""

    count: int
    name = "num_keep"

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", whole("num_keep", self.count))
        if self.count < 1:
            raise UserError(f"num_keep {self.count} keeps nothing: use 1 or more.")

    @property
    def value(self) -> int:
        return self.count

    def tokens(self, arriving: int, patches: int) -> int:
        """Number of tokens to leave of those that arrive, where the image has that many patches."""
        if self.count > patches:
            raise UserError(f"num_keep {self.count} is more than the {patches} patches of the image: use {patches}.")
        return min(self.count, arriving)


@dataclass(frozen=True)
class Removal:
    """Removes a fixed number of the incoming rows, and leaves at least one."""

    removed: int
    name = "r"

    def __post_init__(self) -> None:
        object.__setattr__(self, "removed", whole("r", self.removed))
        if self.removed < 0:
            raise UserError(f"r {self.removed} would add tokens: use a positive number such as 8, or 0 for none.")

    @property
    def value(self) -> int:
        return self.removed

    def tokens(self, arriving: int, patches: int) -> int:
        """Number of tokens to leave of those that arrive, where the image has that many patches."""
        return max(arriving - self.removed, 1)


Amount = Rate | Count | Removal


def falling(amounts: tuple[Amount, ...]) -> tuple[float | int, ...] | None:
    """Returns the amounts, of one kind, lowered so that none exceeds the one before; None if none does."""
    if not amounts or isinstance(amounts[0], Removal) or len({type(amount) for amount in amounts}) > 1:
        return None
    values = tuple(amount.value for amount in amounts)
    lowered = tuple(min(values[: i + 1]) for i in range(len(values)))
    return None if lowered == values else lowered
