import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import golden, golden_names, slow_but

from jaxprune import ops
from jaxprune.errors import UserError

GOLDEN = golden("mim/furthest_sampling")
CASES = sorted({name.split("/")[0] for name in GOLDEN})


def test_counts_are_truncated_in_double_precision():
    assert ops.num_visible(196, 0.75) == 49
    assert ops.num_visible(100, 0.9) == 9  # 1 - 0.9 < 0.1
    assert [ops.num_thrown(196, ratio) for ratio in (0, 0.25, 0.5, 0.65)] == [0, 49, 98, 127]
    assert ops.num_thrown(100, 0.29) == 29  # 0.29 · 100 = 28.999…
    with pytest.raises(UserError, match=r"mask_ratio=0.99 leaves 0 of 64"):
        ops.num_visible(64, 0.99)
    with pytest.raises(UserError, match=r"throw_ratio=-0.1"):
        ops.num_thrown(64, -0.1)


def test_random_masking_matches_mae():
    arrays = golden(golden_names("mim/mae_forward_*")[-1])
    visible = ops.num_visible(arrays["noise"].shape[1], float(arrays["mask_ratio"]))
    ids_keep, ids_restore, masked = ops.random_masking(jnp.asarray(arrays["noise"]), visible)
    np.testing.assert_array_equal(ids_restore, arrays["ids_restore"])
    np.testing.assert_array_equal(masked, arrays["mask"] == 1)
    in_order = np.take_along_axis(np.array(ids_restore), np.array(ids_keep), 1)
    np.testing.assert_array_equal(in_order, [range(visible)] * len(arrays["noise"]))
    assert ids_keep.dtype == ids_restore.dtype == jnp.int32


def test_random_retained_chooses_among_the_masked():
    masked = jnp.array([True, False, True, True, False, True])
    retained = ops.random_retained(jnp.array([0.9, 0.0, 0.2, 0.4, 0.1, 0.3]), masked, 2)
    np.testing.assert_array_equal(retained, [False, False, True, False, False, True])


@pytest.mark.parametrize("case", slow_but(CASES[::3], CASES))
def test_furthest_sampling_matches_the_algorithm(case):
    arrays = {name.split("/")[1]: value for name, value in GOLDEN.items() if name.startswith(f"{case}/")}
    masked, first, num, side = arrays["mask"] == 1, int(arrays["first"]), int(arrays["K"]), int(arrays["grid"])
    np.testing.assert_array_equal(ops.furthest_sampling(masked, first, num), arrays["order"])
    np.testing.assert_array_equal(ops.furthest_sampling_host(masked, first, num), arrays["order"])
    retained, positions = ops.furthest_retained(masked, first, num, (side, side))
    np.testing.assert_array_equal(positions, np.flatnonzero(masked)[arrays["order"]])
    if "retained" in arrays:
        np.testing.assert_array_equal(retained, arrays["retained"] == 1)
        np.testing.assert_array_equal(retained[masked], arrays["s"] == 1)


@pytest.mark.parametrize("name", [name for name in golden_names("mim/prmim_*") if golden(name)["rho_d"] > 0])
def test_furthest_retained_under_vmap_matches_pr_mim(name):
    arrays = golden(name)
    num = arrays["retained_order"].shape[1]
    batched = jax.jit(jax.vmap(lambda masked, first: ops.furthest_retained(masked, first, num)))
    retained, order = batched(jnp.asarray(arrays["mask"] == 1), jnp.asarray(arrays["first_in_masked"]))
    np.testing.assert_array_equal(order, arrays["retained_order"])
    np.testing.assert_array_equal(retained, arrays["retained"] == 1)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_device_and_host_pick_the_same(seed):
    rng = np.random.default_rng(seed)
    masked = np.zeros(35, bool)
    masked[rng.permutation(35)[: rng.integers(9, 35)]] = True
    first = int(rng.integers(masked.sum()))
    device = _furthest_5x7(jnp.asarray(masked), first)
    np.testing.assert_array_equal(device, ops.furthest_sampling_host(masked, first, 9, (5, 7)))
    assert len(set(device.tolist())) == 9


@jax.jit
def _furthest_5x7(masked, first):
    return ops.furthest_sampling(masked, first, 9, (5, 7))


def test_grids_that_do_not_fit_are_named():
    masked = np.ones(35, bool)
    with pytest.raises(UserError, match="35 patches are not a square grid"):
        ops.furthest_sampling(masked, 0, 3)
    with pytest.raises(UserError, match="5×6 grid does not have 35"):
        ops.furthest_sampling_host(masked, 0, 3, (5, 6))
    with pytest.raises(UserError, match="num_retained=0"):
        ops.furthest_sampling(masked, 0, 0, (5, 7))


@pytest.mark.parametrize("first", [-1, 3, 100])
def test_a_start_beyond_the_masked_patches_is_refused_or_clipped(first):
    masked = np.asarray([1, 0, 1, 0, 0, 0, 0, 0, 1], bool)
    for sample in (ops.furthest_sampling, ops.furthest_sampling_host, ops.furthest_retained):
        with pytest.raises(UserError, match=f"first={first} is not an index into the 3 masked patches"):
            sample(masked, first, 2)
    traced = jax.jit(lambda first: ops.furthest_retained(masked, first, 2))
    retained, order = traced(first)
    expected = ops.furthest_retained(masked, min(max(first, 0), 2), 2)
    np.testing.assert_array_equal(retained, expected[0])
    np.testing.assert_array_equal(order, expected[1])
