"""Composes steps that are each reported relative to their input rows into maps of the original patches.

The networks here already report relative to the original patches (`aux.assign`, `aux.kept`); files of others do not.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int


def compose_assignments(steps: Sequence[Int[np.ndarray, "*n _"]]) -> list[Int[np.ndarray, "*n p"]]:
    """Returns, after each step, the row that holds each original patch; -1 = dropped in this step or before.

    >>> compose_assignments([np.array([0, 1, 1, -1]), np.array([0, 0])])[1]
    array([ 0,  0,  0, -1])

    Args:
      steps: for each input row of a step, its output row; -1 = dropped. The input of the first step is all patches.
    """
    composed: list[np.ndarray] = []
    for rows in map(np.asarray, steps):
        composed.append(_follow(rows, composed[-1]) if composed else rows)
    return composed


def compose_kept(steps: Sequence[Int[np.ndarray, "*n _"]]) -> list[Int[np.ndarray, "*n _"]]:
    """Returns, after each step, the original patch of each row; -1 = a row that is not a single patch.

    >>> compose_kept([np.array([3, 0, 2]), np.array([2, 0])])[1]
    array([2, 3])

    Args:
      steps: for each output row of a step, its input row; -1 = none.
    """
    composed: list[np.ndarray] = []
    for ids in map(np.asarray, steps):
        composed.append(_follow(composed[-1], ids) if composed else ids)
    return composed


def _follow(values: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """values[ids] of each image, and -1 for an id of -1."""
    return np.where(ids < 0, -1, np.take_along_axis(values, np.maximum(ids, 0), axis=-1))
