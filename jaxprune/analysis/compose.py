"""What happens to the original patches in several steps, where each step is only known about the rows it got.

The networks here report both about the original patches already (`aux.assign`, `aux.kept`); files of others do not.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int


def compose_assignments(steps: Sequence[Int[np.ndarray, "*n _"]]) -> list[Int[np.ndarray, "*n p"]]:
    """Returns after each step the row that holds each original patch; -1 = it was dropped, in this step or before.

    >>> compose_assignments([np.array([0, 1, 1, -1]), np.array([0, 0])])[1]
    array([ 0,  0,  0, -1])

    Args:
      steps: for each row that a step got, in which row it is afterwards; -1 = dropped. The first got all patches.
    """
    composed: list[np.ndarray] = []
    for rows in map(np.asarray, steps):
        composed.append(_follow(rows, composed[-1]) if composed else rows)
    return composed


def compose_kept(steps: Sequence[Int[np.ndarray, "*n _"]]) -> list[Int[np.ndarray, "*n _"]]:
    """Returns after each step which original patch each row is; -1 = a row that is no single patch.

    >>> compose_kept([np.array([3, 0, 2]), np.array([2, 0])])[1]
    array([2, 3])

    Args:
      steps: for each row that a step leaves, which of the rows that it got it was; -1 = none.
    """
    composed: list[np.ndarray] = []
    for ids in map(np.asarray, steps):
        composed.append(_follow(composed[-1], ids) if composed else ids)
    return composed


def _follow(values: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """values[ids] of each image, and -1 for an id of -1."""
    return np.where(ids < 0, -1, np.take_along_axis(values, np.maximum(ids, 0), axis=-1))
