"""The largest batch that fits a chip."""

from collections.abc import Callable
from typing import Protocol, TypeVar


class _Tried(Protocol):
    @property
    def fits(self) -> bool: ...


Tried = TypeVar("Tried", bound=_Tried)


def until_one_fits(rows: int, attempt: Callable[[int], Tried]) -> list[Tried]:
    """Tries a batch, and halves of it until one fits; returns all that were tried.

    Args:
      rows: rows of the batch on a chip.
      attempt: compiles a program for so many rows a chip; what it returns says whether it `fits`.
    """
    tried = []
    while rows and not (tried and tried[-1].fits):
        tried.append(attempt(rows))
        rows //= 2
    return tried
