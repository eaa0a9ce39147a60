"""ToMe inside the windows of a Swin, shifted or not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import quick_compile, slow_but

from jaxprune import flops, models, reduction
from jaxprune.errors import UserError
from jaxprune.models.hierarchical import on_map
from jaxprune.nn.tokens import Attended
from jaxprune.nn.windows import Windows
from jaxprune.reduction import Plan, Step
from jaxprune.reduction.in_windows import most_pairs
from jaxprune.reduction.tome import ToMe

GRID = (6, 9)


def step(windows, num_keep):
    rows = windows.grid[0] * windows.grid[1]
    return Step(0, 0, windows.grid, 0, rows, num_keep, num_keep / rows, 8, 2, leaves=False, windows=windows)


def places(windows):
    """For each row of the map its window, and the part of the map that it comes from before the shift."""
    down, across = np.divmod(np.arange(windows.grid[0] * windows.grid[1]), windows.grid[1])
    found = []
    for where, grid, size, shift in zip((down, across), windows.grid, windows.size, windows.shift, strict=True):
        rolled = (where - shift) % grid
        found += [rolled // size, where < shift]
    return np.stack(found, axis=1)


@pytest.mark.parametrize("shifted", slow_but([True], [False, True]))
def test_rows_merge_in_their_window_as_many_in_each(shifted):
    windows, rng = Windows.of(GRID, (3, 3), shifted=shifted), np.random.default_rng(0)
    x, keys = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((2, 54, 8), (2, 2, 54, 4)))
    reducer = ToMe(step(windows, 37))  # 6 of 9 rows of each window
    call = jax.jit(lambda x, keys: reducer(on_map(x, GRID), Attended(keys=keys)), compiler_options=quick_compile())
    tokens, report = call(x, keys)
    rows, row_map, where = reducer.num_rows(), np.asarray(report.row_map), places(windows)
    # Of a corner window of a shift, one row by itself has nothing to merge with.
    assert rows == (36 if not shifted else 54 - 6 * min(3, most_pairs(windows))) and tokens.x.shape == (2, rows, 8)
    similar = np.asarray(keys).mean(1)
    similar /= np.linalg.norm(similar, axis=-1, keepdims=True)
    for image in range(2):
        for row in range(rows):
            members = np.flatnonzero(row_map[image] == row)
            assert len(members) and len(np.unique(where[members], axis=0)) == 1
            np.testing.assert_allclose(tokens.x[image, row], np.asarray(x[image, members]).mean(0), atol=1e-6)
            assert tokens.size[image, row] == len(members) and int(report.kept[image, row]) in members
        counts = [len(set(row_map[image][(where[:, [0, 2]] == window).all(1)])) for window in np.ndindex(2, 3)]
        assert set(counts) == {rows // 6}
    # The first window by hand: the most similar of A with their best of B.
    inside = np.flatnonzero((where == where[np.ravel_multi_index(windows.shift, GRID)]).all(1))
    if not shifted:
        a, b = inside[::2], inside[1::2]
        between = similar[0][a] @ similar[0][b].T
        first = between.max(1).argsort()[::-1][:3]
        for one in first:
            assert row_map[0][a[one]] == row_map[0][b[between[one].argmax()]]


def test_what_a_shift_leaves_alone_is_no_pair():
    assert most_pairs(Windows.of((4, 4), (2, 2), shifted=False)) == 2
    assert most_pairs(Windows.of((4, 4), (2, 2), shifted=True)) == 0
    assert ToMe(step(Windows.of((4, 4), (2, 2), shifted=True), 8)).num_rows() == 16


def swin(**sizes):
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 8, "depths": (2, 1), "num_heads": (1, 2), **sizes}
    return models.create("swin", **{"window_size": 4, "num_classes": 3, **sizes}, rngs=nnx.Rngs(0))


def test_a_swin_counts_and_refuses_maps_that_are_no_whole_number_of_windows():
    model, plan = nnx.eval_shape(swin), Plan("tome", (0.75, 0.75, 0.5), (0, 1, 2))
    counted = flops.host(model, plan)
    feed = [model.block_cost(site).feed for site in model.sites()]
    dense, saved = flops.host(model), (16, 16, 8)
    assert [d - c for d, c in zip(dense.blocks, counted.blocks, strict=True)] == [
        each * rows for each, rows in zip(feed, saved, strict=True)
    ]
    with pytest.raises(UserError, match=r"tome merges inside windows, and at block 1 the map of \(8, 8\) is no whole"):
        reduction.apply(nnx.eval_shape(lambda: swin(window_size=3)), Plan("tome", 0.75, (1,)))


@pytest.mark.slow
def test_a_swin_under_tome_and_topk():
    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, 32, 32, 3)), jnp.float32)
    plan = Plan.from_text("tome@0:keep_rate=0.7+topk@1:keep_rate=0.5+tome@2:keep_rate=0.5")
    fast = reduction.apply(swin(), plan)
    graph, state = nnx.split(fast)
    taps = {1: frozenset({"received"})}

    @functools.partial(jax.jit, compiler_options=quick_compile())
    def both(state, images):
        model = nnx.merge(graph, state)
        return model(images), model.walk(images, taps=taps).forward().attended[1].received.mean(1)

    (logits, aux), received = both(state, images)
    assert np.isfinite(logits).all() and [kept.shape[1] for kept in aux.kept] == [44, 32, 8]
    best = np.sort(np.argsort(-np.asarray(received), axis=1, kind="stable")[:, :32], axis=1)
    np.testing.assert_array_equal(np.sort(aux.kept[1], axis=1), best)
