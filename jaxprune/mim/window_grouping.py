"""Groups of windows in which few tokens are left (GreenMIM; Huang et al., 2022).

Where a mask leaves each window a few of its tokens, several windows share a group, and attention inside of it is masked
to the pairs of one window. Which windows go together is a 0/1 knapsack problem, solved again for those that are left:
by NumPy, for a mask known on the host. For one that is not, `pack_tokens` fills groups in the order of the windows, by
JAX, and as many as there can be for any mask.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxprune.errors import UserError

# Of a group's slots that hold no token.
EMPTY = -1


def locate(coords: Any, window: tuple[int, int], shift: tuple[int, int]) -> tuple[Any, Any]:
    """Returns in which window a token is, and where in it, both as (row, column).

    Windows do not wrap around the map: with a shift, those at its border are smaller.

    >>> locate(np.asarray([[0, 3]]), (2, 2), (1, 1))
    (array([[0, 2]]), array([[1, 0]]))

    Args:
      coords: (row, column) on the map in the last axis, of NumPy or of JAX.
      window: height and width.
      shift: of the windows down and to the right.
    """
    first = [(size - step) % size for size, step in zip(window, shift, strict=True)]
    moved = coords + np.asarray(first, np.int32).reshape((1,) * (coords.ndim - 1) + (2,))
    sides = np.asarray(window, np.int32).reshape((1,) * (coords.ndim - 1) + (2,))
    return moved // sides, moved % sides


def window_ids(coords: Int[np.ndarray, "n 2"], window: tuple[int, int], shift: tuple[int, int]) -> Int[np.ndarray, "n"]:
    """Returns a number for each token, the same for the tokens of one window.

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
      weights: whole numbers, not negative.
      capacity: likewise.

    Returns:
      The sum, and the places of the weights chosen, ascending: of several choices that which leaves out later weights.
    """
    reached = np.zeros((len(weights) + 1, capacity + 1), np.int64)  # by the first so many weights, at most so much
    for i, weight in enumerate(weights):
        reached[i + 1] = reached[i]
        if weight <= capacity:
            reached[i + 1, weight:] = np.maximum(reached[i, weight:], reached[i, : capacity + 1 - weight] + weight)
    chosen, left = [], capacity
    for i in reversed(range(len(weights))):
        if reached[i + 1, left] != reached[i, left]:
            chosen.append(i)
            left -= weights[i]
    return int(reached[-1, capacity]), tuple(reversed(chosen))


def group_windows(counts: Sequence[int], capacity: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Fills one group after the other with windows, each as full as the windows that are left allow.

    >>> group_windows([3, 5, 4, 2], 8)
    ((8, 6), (0, 0, 1, 1))

    Args:
      counts: tokens of each window, at least one.
      capacity: tokens of a group.

    Returns:
      The tokens of each group, and the group of each window.

    Raises:
      UserError: a window has no tokens, or more than a group holds.
    """
    counts = [int(count) for count in counts]
    if counts and not 1 <= min(counts) <= max(counts) <= capacity:
        raise UserError(
            f"Windows of {min(counts)} to {max(counts)} tokens do not fit groups of {capacity}: leave out empty "
            "windows, and let a group hold the largest."
        )
    sizes, group, left = [], [0] * len(counts), list(range(len(counts)))
    while left:
        size, chosen = knapsack([counts[window] for window in left], capacity)
        taken = {left[place] for place in chosen}
        for window in taken:
            group[window] = len(sizes)
        sizes.append(size)
        left = [window for window in left if window not in taken]
    return tuple(sizes), tuple(group)


class Groups(NamedTuple):
    """Tokens laid out in groups of one size.

    Attributes:
      rows: the token in each slot of each group, `EMPTY` where there is none.
      windows: the window of that token; of an empty slot likewise.
      slots: the slot of each token, counted over all groups.
    """

    rows: Int[Array | np.ndarray, "g m"]
    windows: Int[Array | np.ndarray, "g m"]
    slots: Int[Array | np.ndarray, "n"]

    @property
    def together(self) -> Bool[Array | np.ndarray, "g m m"]:
        """True where the tokens of two slots are there and of one window."""
        alike = self.windows[:, :, None] == self.windows[:, None, :]
        return alike & (self.rows != EMPTY)[:, :, None]


def group_tokens(windows: Int[np.ndarray, "n"], capacity: int) -> Groups:
    """Groups tokens by their windows, in groups no larger than the fullest window asks for.

    >>> group_tokens(np.asarray([7, 7, 3, 9]), capacity=4).rows
    array([[0, 1],
           [2, 3]])

    Args:
      windows: of each token, see `window_ids`.
      capacity: tokens of a group at most, such as those of a whole window.

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
    """The groups that `pack_tokens` needs at most: a group and the next one hold more than one of them could.

    >>> most_groups(tokens=768, windows=64, capacity=49)
    31
    """
    even, odd = 2 * (tokens // (capacity + 1)), 2 * ((tokens - 1) // (capacity + 1)) + 1
    return min(windows, max(even, odd))


def pack_tokens(windows: Int[Array, "n"], num_windows: int, capacity: int) -> Groups:
    """Groups tokens by their windows: a window that does not fit begins the next group.

    Args:
      windows: of each token, from 0.
      num_windows: above all of them.
      capacity: tokens of a group, as many as a window can have.
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
