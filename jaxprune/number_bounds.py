"""The interval of a setting that is a number, or a tuple of numbers, and what is said of a value outside of it."""

import dataclasses
import math
import numbers
import types
import typing
from typing import Any, NamedTuple

from jaxprune.errors import UserError, quoted


class _Kind(NamedTuple):
    """What a type says of numbers: `int`, `tuple[float, float]`, `int | tuple[int, ...] | None`, …"""

    is_whole: bool
    scalar: bool
    counts: tuple[int, ...]  # of tuples; 0: any
    none: bool

    @classmethod
    def of(cls, annotation: Any) -> "_Kind":
        options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
        tuples = [typing.get_args(option) for option in options if typing.get_origin(option) is tuple]
        scalars = [option for option in options if option in (int, float)]
        elements = [*scalars, *(element for items in tuples for element in items)]
        counts = tuple(0 if ... in items else len(items) for items in tuples)
        return cls(float not in elements, bool(scalars), counts, types.NoneType in options)


def _is_finite(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


class Bounds(NamedTuple):
    """The ends of the allowed interval.

    >>> Bounds(at_least=0, at_most=1).problem("easing", 2, float, 0.3)
    'easing=2 must be a finite number in [0, 1]: use for example 0.3.'
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def problem(self, name: str, value: Any, annotation: Any, example: Any) -> str:
        """Returns what is wrong with a value, "" if nothing is.

        Args:
          name: of the setting.
          annotation: its type; `int` means whole numbers.
          example: a value that can be used.
        """
        kind = _Kind.of(annotation)
        if self._hold(value, kind):
            return ""
        return f"{name}={quoted(value)} must be {self._words(kind)}: use for example {example!r}."

    def _hold(self, value: Any, kind: _Kind) -> bool:
        """Whether a value, or each element of a tuple, is allowed."""
        if value is None:
            return kind.none
        if isinstance(value, (tuple, list)):
            return any(count in (0, len(value)) for count in kind.counts) and all(self._fits(v, kind) for v in value)
        return kind.scalar and self._fits(value, kind)

    def _fits(self, value: Any, kind: _Kind) -> bool:
        if not _is_finite(value):
            return False
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
            and (not kind.is_whole or value == int(value))
        )

    def _words(self, kind: _Kind) -> str:
        """What is allowed, such as "a whole number of 1 or more"."""
        noun = "whole number" if kind.is_whole else "finite number"
        count = max(kind.counts, default=0)
        amount = f"a {noun}" if kind.scalar else f"{count} {noun}s" if count else f"{noun}s"
        low = self.at_least if self.above is None else self.above
        high = self.at_most if self.below is None else self.below
        if high is not None:
            return f"{amount} in {'[' if self.above is None else '('}{low}, {high}{']' if self.below is None else ')'}"
        if low is None:
            return amount
        return f"{amount} of {low} or more" if self.above is None else f"{amount} above {low}"


def bounded(default: Any, *, example: Any = None, **ends: float) -> Any:
    """Declares a number, or a tuple of numbers, of a dataclass.

    Args:
      default: its value.
      example: a value that can be used; by default the default.
      ends: of the allowed interval, see `Bounds`.
    """
    usable = default if example is None else example
    return dataclasses.field(default=default, metadata={"bounds": Bounds(**ends), "example": usable})


def require_bounded(settings: Any) -> None:
    """Checks the numbers of a dataclass that `bounded` declares.

    Raises:
      UserError: one is outside its interval.
    """
    for field in dataclasses.fields(settings):
        if bounds := field.metadata.get("bounds"):
            value = getattr(settings, field.name)
            if problem := bounds.problem(field.name, value, field.type, field.metadata["example"]):
                raise UserError(problem)
