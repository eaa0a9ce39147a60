"""Cells: what the plain and the shifted windows of a map have in common."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import quick_compile, slow_but

from jaxprune.nn.window_cells import Cells

# Even and odd windows, a map that one window covers along a side, and one window in all.
MAPS = [((6, 9), (3, 3)), ((8, 8), (4, 4)), ((14, 21), (7, 7)), ((5, 10), (5, 5)), ((6, 12), (6, 3)), ((3, 3), (7, 7))]


def windows_of(windows):
    """The rows of the map that each window holds, in their order, from the sides alone."""
    places = np.stack(np.divmod(np.arange(np.prod(windows.grid)), windows.grid[1]), axis=1)
    rolled = (places - windows.shift) % windows.grid
    number = rolled // windows.size @ [windows.counts[1], 1]
    order = np.lexsort((rolled % windows.size @ [windows.size[1], 1], number))
    return order.reshape(np.prod(windows.counts), -1)


def thinned(cells, rows, rng):
    """Rows of the map of which each plain window keeps `rows`, by cells as `held` says, window by window."""
    windows = cells.windows
    sides = [np.arange(side) >= shift if shift else np.zeros(side) for side, shift in zip(*windows[1:], strict=True)]
    kind = (sides[0][:, None] * 2 + sides[1][None]).reshape(-1)
    kept = []
    for window in windows_of(windows._replace(shift=(0, 0))):
        for one, count in zip(np.unique(kind), cells.held(rows), strict=True):
            kept.append(rng.choice(window[kind == one], count, replace=False))
    return np.concatenate(kept)


@pytest.mark.parametrize("of", slow_but(MAPS[:1], MAPS))
def test_windows_of_both_cuts_hold_equally_many_rows_of_the_map(of):
    cells, rng = Cells.of(*of, shifted=True), np.random.default_rng(0)
    windows, shifts = cells.windows, (False, True)
    rows = int(np.prod(windows.size)) // 2 + 1
    numbers = thinned(cells, rows, rng)
    x = jnp.asarray(rng.normal(size=(2, np.prod(windows.grid), 3)), jnp.float32)
    position = jnp.asarray(np.stack(np.divmod(numbers, windows.grid[1]), axis=1), jnp.float32)[None]

    @functools.partial(jax.jit, compiler_options=quick_compile())
    def call(x, layout, position):
        cut = [cells.cut(layout[:, None], shifted=shifted) for shifted in shifts]
        back = [cells.uncut(inside, shifted=shifted) for inside, shifted in zip(cut, shifts, strict=True)]
        places = [cells.places(position, shifted=shifted) for shifted in shifts]
        whole, split = cells.split(x), cells.split(layout)
        return cells.join(whole), whole, cells.join(split), cut, back, places

    layout = jnp.asarray(numbers)[None, :, None]
    x_again, whole, again, cut, back, places = call(x, layout, position)
    np.testing.assert_array_equal(x_again, x)
    assert cells.held(int(np.prod(windows.size))) == tuple(kind.shape[1] for kind in whole)
    np.testing.assert_array_equal(again, layout)
    for shifted in shifts:
        np.testing.assert_array_equal(back[shifted], layout[:, None])
        of_map = windows_of(windows if shifted else windows._replace(shift=(0, 0)))
        at = np.asarray(places[shifted]) @ [windows.size[1], 1]
        # Every row is in its window, at its place, and no row is in two.
        inside = np.asarray(cut[shifted])[:, 0, :, 0]
        np.testing.assert_array_equal(np.take_along_axis(of_map, at, axis=1), inside)
        assert len(np.unique(inside)) == rows * len(of_map)
        if shifted and any(windows.shift):
            # What keeps those apart that only the shift brought into a window.
            wanted = [apart[np.ix_(places, places)] for apart, places in zip(windows.shift_mask(), at, strict=True)]
            np.testing.assert_array_equal(cells.shift_mask(rows), wanted)


@pytest.mark.parametrize(("grid", "size"), MAPS)
def test_fewer_rows_of_a_window_are_no_more_of_a_cell(grid, size):
    cells = Cells.of(grid, size, shifted=True)
    rows = full = int(np.prod(cells.windows.size))
    held = [np.asarray(cells.held(k)) for k in range(full + 1)]
    assert [cell.sum() for cell in held] == list(range(full + 1))
    assert all((more >= fewer).all() for fewer, more in itertools.pairwise(held))
    # The same share of every cell, but for a row.
    assert all(np.abs(cell - held[full] * k / full).max() <= 1 for k, cell in enumerate(held))
    # Pairs leave at least half of every cell, and a step takes what is wanted if that is more.
    least = cells.after_merging(rows, 1)
    assert (held[least] >= held[full] / 2).all() and (held[least - 1] < held[full] / 2).any()
    assert cells.after_merging(full, least + 1) == least + 1


def test_there_are_cells_where_windows_are_whole():
    assert Cells.of((8, 9), (4, 4), shifted=True) is None
    assert Cells.of((8, 8), (4, 4), shifted=False).held(9) == (9,)
    # A cell of one row cannot merge, and others have as many rows as it takes.
    assert Cells.of((6, 6), (3, 3), shifted=True).after_merging(9, 1) == 5
    assert Cells.of((4, 4), (2, 2), shifted=True).after_merging(4, 1) == 4
