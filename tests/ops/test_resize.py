import chex
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import golden

from jaxprune import ops
from jaxprune.errors import UserError

GOLDEN = golden("ltrp_papr/interpolate")
CASES = sorted(name for name in GOLDEN if not name.endswith("/x"))
OPTIONS = st.sampled_from(
    [("bicubic", True, False), ("bicubic", False, True), ("bilinear", False, True), ("nearest", False, False)]
)


@pytest.mark.parametrize("case", CASES)
def test_resize_matches_torch(case):
    group, options = case.split("/")
    method, *flags = options.split("_")
    x = jnp.asarray(np.moveaxis(GOLDEN[f"{group}/x"], 1, -1))
    expected = np.moveaxis(GOLDEN[case], 1, -1)
    shape = expected.shape[1:-1]
    if x.ndim == 5:
        result = ops.resize_3d(x, shape, method, align_corners="ac1" in flags)
    else:
        result = ops.resize(x, shape, method, align_corners="ac1" in flags, antialias="antialias" in flags)
    chex.assert_trees_all_close(result, expected, atol=2e-5)


def test_antialiasing_averages_when_shrinking():
    # Twice smaller, bilinear: the triangle over four pixels has weights 1, 3, 3, 1 over 8.
    x = jnp.arange(8.0)[None, None, :, None] ** 2
    shrunk = ops.resize(x, (1, 4), "bilinear", antialias=True)
    np.testing.assert_allclose(shrunk[0, 0, 1, 0], (1 + 3 * 4 + 3 * 9 + 16) / 8, rtol=1e-6)


@settings(max_examples=8, deadline=None)
@given(options=OPTIONS, old=st.integers(2, 6), new=st.integers(1, 9))
def test_resize_preserves_constants_and_the_same_size(options, old, new):
    method, align_corners, antialias = options
    constant = ops.resize(jnp.full((1, old, 3, 2), 1.5), (new, 4), method, align_corners, antialias)
    np.testing.assert_allclose(constant, np.full((1, new, 4, 2), 1.5), rtol=1e-6)
    x = jnp.arange(old * 3.0).reshape(1, old, 3, 1)
    np.testing.assert_array_equal(ops.resize(x, (old, 3), method, align_corners, antialias), x)


def test_nearest_takes_any_dtype_and_low_precision_keeps_its_own():
    assert ops.resize(jnp.ones((1, 2, 2, 1), bool), (4, 4), "nearest").dtype == bool
    assert ops.resize(jnp.ones((1, 2, 2, 1), jnp.bfloat16), (4, 4)).dtype == jnp.bfloat16
    video = ops.resize_3d(jnp.arange(2)[None, :, None, None, None], (4, 1, 1), "nearest")
    np.testing.assert_array_equal(video.ravel(), [0, 0, 1, 1])


def test_options_that_exclude_each_other_are_named():
    with pytest.raises(UserError, match="align_corners=True"):
        ops.resize(jnp.zeros((1, 2, 2, 1)), (1, 1), align_corners=True, antialias=True)
