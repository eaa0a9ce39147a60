"""Grouping of windows against the published numbers, and what every grouping promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import golden, in_names, quick_compile

from jaxprune.errors import UserError
from jaxprune.mim.parts.window_grouping import (
    EMPTY,
    group_tokens,
    group_windows,
    knapsack,
    most_groups,
    pack_tokens,
    window_ids,
)

FILE = golden("mim/greenmim_grouping")


@pytest.mark.parametrize("case", in_names(FILE, r"(k\d+)/wt"))
def test_the_knapsack_matches(case):
    weights, capacity = FILE[f"{case}/wt"].tolist(), int(FILE[f"{case}/capacity"])
    best, chosen = knapsack(weights, capacity)
    assert (best, chosen) == (FILE[f"{case}/best"], tuple(FILE[f"{case}/idx"]))
    sizes, group = group_windows(weights, capacity)
    assert sizes == tuple(FILE[f"{case}/num_ele_group"])
    assert group == tuple(FILE[f"{case}/group_of_window"])


@pytest.mark.parametrize("case", in_names(FILE, r"(g\d+)/coords"))
def test_the_groups_match(case):
    coords, window, shift = (FILE[f"{case}/{name}"] for name in ("coords", "window", "shift"))
    ids = window_ids(coords.astype(int), (int(window),) * 2, (int(shift),) * 2)
    np.testing.assert_array_equal(ids, FILE[f"{case}/group_id"])
    np.testing.assert_array_equal(np.unique(ids, return_counts=True)[1], FILE[f"{case}/window_counts"])
    groups = group_tokens(ids, int(window) ** 2)
    assert groups.rows.shape == (FILE[f"{case}/n_groups"], FILE[f"{case}/group_size"])
    assert groups.pair_mask.sum() == FILE[f"{case}/attn_mask_zero_count"]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=9), st.integers(0, 60))
def test_no_choice_of_weights_is_better(weights, capacity):
    best, chosen = knapsack(weights, capacity)
    sums = {0}
    for weight in weights:
        sums |= {weight + other for other in sums}
    assert best == max(total for total in sums if total <= capacity) == sum(weights[i] for i in chosen)
    assert list(chosen) == sorted(set(chosen))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_every_token_has_a_slot_among_those_of_its_window(windows):
    windows = np.asarray(windows)
    groups = group_tokens(windows, capacity=64)
    np.testing.assert_array_equal(groups.rows.reshape(-1)[groups.slots], np.arange(len(windows)))
    assert (groups.rows != EMPTY).sum() == len(windows)
    assert groups.pair_mask.sum() == (np.unique(windows, return_counts=True)[1] ** 2).sum()


def test_packing_has_room_for_any_mask():
    capacity, number, n = 9, 12, 40
    pack = jax.jit(lambda windows: pack_tokens(windows, number, capacity), compiler_options=quick_compile())
    draw, filled = np.random.default_rng(0), []
    # Windows as even as can be, full ones beside others that do not fit in with them, and any.
    every = np.repeat(np.arange(number), capacity)
    full = np.repeat(np.arange(7), [9, 1, 9, 1, 9, 1, 9])
    drawn = [np.arange(n) % number, np.append(full, 8), *(draw.permutation(every)[:n] for _ in range(20))]
    for windows in drawn:
        groups = jax.tree.map(np.asarray, pack(jnp.asarray(windows)))
        assert groups.rows.shape == (most_groups(n, number, capacity), capacity)
        np.testing.assert_array_equal(groups.rows.reshape(-1)[groups.slots], np.arange(n))
        assert (groups.rows != EMPTY).sum() == n
        assert groups.pair_mask.sum() == (np.unique(windows, return_counts=True)[1] ** 2).sum()
        filled.append((groups.rows != EMPTY).any(1).sum())
    assert max(filled) == most_groups(n, number, capacity) > min(filled)


def test_windows_that_fit_no_group_are_refused():
    with pytest.raises(UserError, match="Windows of 2 to 9 tokens do not fit groups of 8"):
        group_windows([2, 9], 8)
    with pytest.raises(UserError, match="remove empty windows"):
        group_windows([2, 0], 8)
