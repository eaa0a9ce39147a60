"""The largest batch that fits a chip."""

from collections.abc import Callable
from typing import NamedTuple

from jaxprune.accelerators.costs import Costs, DoesNotFit


class Fitted(NamedTuple):
    """A batch that was tried, and the largest that fits.

    Attributes:
      rows: rows a chip of the largest batch that fits; 0 if none does.
      costs: its costs; None if none fits.
      refused: why the batch that was asked for does not fit; None if it does.
    """

    rows: int
    costs: Costs | None
    refused: DoesNotFit | None


def fit_by_halves(rows: int, attempt: Callable[[int], Costs]) -> Fitted:
    """Tries a batch, and halves of it until one fits.

    Args:
      rows: rows of the batch on a chip.
      attempt: compiles a program for so many rows a chip; raises `DoesNotFit`.
    """
    refused = None
    while rows:
        try:
            return Fitted(rows, attempt(rows), refused)
        except DoesNotFit as error:
            refused = refused or error
            rows //= 2
    return Fitted(0, None, refused)
