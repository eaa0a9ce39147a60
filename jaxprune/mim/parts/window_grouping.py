"""Groups of sparsely filled windows (GreenMIM; Huang et al., 2022).

If a mask leaves few tokens per window, several windows share a group, in which attention is masked to pairs of the same
window. Assigning windows to groups is a 0/1 knapsack problem, solved repeatedly for the remaining windows: in NumPy,
for a mask known on the host. For a traced mask, `pack_tokens` fills groups in the order of the windows, in JAX, with
the largest number of groups that any mask can need.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxprune.errors import UserError

# Marks the slots of a group that hold no token.
EMPTY = -1


def locate(coords: Any, window: tuple[int, int], shift: tuple[int, int]) -> tuple[Any, Any]:
    """Returns the window of a token, and its position in the window, both as (row, column).

    Windows do not wrap around the map: with a shift, those at its border are smaller.

    >>> locate(np.asarray([[0, 3]]), (2, 2), (1, 1))
    (array([[0, 2]]), array([[1, 0]]))

    Args:
      coords: (row, column) on the map in the last axis, as a NumPy or JAX array.
      window: (height, width) of a window.
      shift: shift of the windows, down and to the right.
    """
    first = [(size - step) % size for size, step in zip(window, shift, strict=True)]
    moved = coords + np.asarray(first, np.int32).reshape((1,) * (coords.ndim - 1) + (2,))
    sides = np.asarray(window, np.int32).reshape((1,) * (coords.ndim - 1) + (2,))
    return moved // sides, moved % sides


def window_ids(coords: Int[np.ndarray, "n 2"], window: tuple[int, int], shift: tuple[int, int]) -> Int[np.ndarray, "n"]:
    """Returns the number of each token's window.

    >>> window_ids(np.asarray([[0, 0], [0, 1], [0, 2], [2, 0]]), (2, 2), (1, 1))
    array([0, 1, 1, 4])

    Args:
      coords: (row, column) of each token.
      window, shift: see `locate`.
    """
    row, column = locate(np.asarray(coords, np.int64), window, shift)[0].T
    return row * max(len(row), int(column.max(initial=0)) + 1) + column


def knapsack(weights: Sequence[int], capacity: int) -> tuple[int, tuple[int, ...]]:
    """Chooses the weights of the largest sum that is at most `capacity`, by dynamic programming.

    >>> knapsack([3, 5, 4, 2], 8)
    (8, (0, 1))

    Args:
      weights: non-negative integers.
      capacity: non-negative integer.

    Returns:
      The sum, and the indices of the chosen weights, ascending; among equal choices, the one that leaves out later
      weights.
    """
    reached = np.zeros((len(weights) + 1, capacity + 1), np.int64)  # best sum of the first i weights in capacity c
    for i, weight in enumerate(weights):
        reached[i + 1] = reached[i]
        if weight <= capacity:
            reached[i + 1, weight:] = np.maximum(reached[i, weight:], reached[i, : capacity + 1 - weight] + weight)
    indices, left = [], capacity
    for i in reversed(range(len(weights))):
        if reached[i + 1, left] != reached[i, left]:
            indices.append(i)
            left -= weights[i]
    return int(reached[-1, capacity]), tuple(reversed(indices))


def group_windows(counts: Sequence[int], capacity: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Fills groups with windows one after the other, each as full as the remaining windows allow.

    >>> group_windows([3, 5, 4, 2], 8)
    ((8, 6), (0, 0, 1, 1))

    Args:
      counts: number of tokens of each window, at least one.
      capacity: number of tokens that a group holds.

    Returns:
      The number of tokens of each group, and the group of each window.

    Raises:
      UserError: a window has no tokens, or more than a group holds.
    """
    counts = [int(count) for count in counts]
    if counts and not 1 <= min(counts) <= max(counts) <= capacity:
        raise UserError(
            f"Windows of {min(counts)} to {max(counts)} tokens do not fit groups of {capacity}: remove empty "
            "windows, and choose a capacity for the largest."
        )
    sizes, group, ungrouped = [], [0] * len(counts), list(range(len(counts)))
    while ungrouped:
        size, places = knapsack([counts[window] for window in ungrouped], capacity)
        windows = {ungrouped[place] for place in places}
        for window in windows:
            group[window] = len(sizes)
        sizes.append(size)
        ungrouped = [window for window in ungrouped if window not in windows]
    return tuple(sizes), tuple(group)


class Groups(NamedTuple):
    """Tokens laid out in groups of one size.

    Attributes:
      rows: the token in each slot of each group, `EMPTY` if there is none.
      windows: the window of that token, `EMPTY` if there is none.
      slots: the slot of each token, numbered over all groups.
    """

    rows: Int[Array | np.ndarray, "g m"]
    windows: Int[Array | np.ndarray, "g m"]
    slots: Int[Array | np.ndarray, "n"]

    @property
    def pair_mask(self) -> Bool[Array | np.ndarray, "g m m"]:
        """True where two slots hold tokens of the same window."""
        alike = self.windows[:, :, None] == self.windows[:, None, :]
        return alike & (self.rows != EMPTY)[:, :, None]


def group_tokens(windows: Int[np.ndarray, "n"], capacity: int) -> Groups:
    """Groups tokens by their windows, in groups no larger than necessary for the fullest window.

    >>> group_tokens(np.asarray([7, 7, 3, 9]), capacity=4).rows
    array([[0, 1],
           [2, 3]])

    Args:
      windows: window of each token, see `window_ids`.
      capacity: upper bound on the tokens of a group, such as those of a whole window.

    Raises:
      UserError: a window has more tokens than a group holds.
    """
    _, window, counts = np.unique(windows, return_inverse=True, return_counts=True)
    size = min(capacity, int(counts.max()))
    sizes, group = group_windows(counts.tolist(), size)
    rows = np.full((len(sizes), size), EMPTY)
    slots = np.empty(len(window), np.int64)
    for number in range(len(sizes)):
        members = np.flatnonzero(np.asarray(group)[window] == number)
        rows[number, : len(members)] = members
        slots[members] = number * size + np.arange(len(members))
    return Groups(rows, np.where(rows == EMPTY, EMPTY, np.asarray(windows)[rows]), slots)


def most_groups(tokens: int, windows: int, capacity: int) -> int:
    """The largest number of groups that `pack_tokens` needs: two consecutive groups hold more than one can.

    >>> most_groups(tokens=768, windows=64, capacity=49)
    31
    """
    even, odd = 2 * (tokens // (capacity + 1)), 2 * ((tokens - 1) // (capacity + 1)) + 1
    return min(windows, max(even, odd))


def pack_tokens(windows: Int[Array, "n"], num_windows: int, capacity: int) -> Groups:
    """Groups tokens by their windows; a window that does not fit starts the next group.

    Args:
      windows: window of each token, from 0.
      num_windows: upper bound on the window numbers, exclusive.
      capacity: number of tokens of a group, at least that of a full window.
    """
    n, size = windows.shape[0], capacity
    number = most_groups(n, num_windows, size)
    counts = jnp.bincount(windows, length=num_windows)

    def place(last: tuple[Array, Array], count: Array) -> tuple[tuple[Array, Array], Array]:
        group, filled = last
        fits = filled + count <= size
        group, start = jnp.where(fits, group, group + 1), jnp.where(fits, filled, 0)
        return (group, start + count), group * size + start

    zero = jnp.zeros((), counts.dtype)
    _, starts = jax.lax.scan(place, (zero, zero), counts)
    order = jnp.argsort(windows, stable=True)
    before = jnp.cumsum(counts) - counts
    rank = jnp.zeros((n,), counts.dtype).at[order].set(jnp.arange(n, dtype=counts.dtype)) - before[windows]
    slots = starts[windows] + rank
    rows = jnp.full((number * size,), EMPTY, jnp.int32).at[slots].set(jnp.arange(n, dtype=jnp.int32))
    rows = rows.reshape(number, size)
    return Groups(rows, jnp.where(rows == EMPTY, EMPTY, windows[rows]), slots)
