import chex
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import golden, nhwc

from jaxprune import ops
from jaxprune.errors import UserError

GOLDEN = golden("mim/patchify")


def test_patchify_matches_the_published_order():
    images, patch = jnp.asarray(nhwc(GOLDEN["imgs"])), int(GOLDEN["patch"])
    patches = ops.patchify(images, patch)
    chex.assert_trees_all_close(patches, GOLDEN["patches"], atol=1e-6)
    grid = (images.shape[1] // patch, images.shape[2] // patch)
    chex.assert_trees_all_close(ops.unpatchify(patches, patch, grid), nhwc(GOLDEN["unpatchified"]), atol=1e-6)


def test_normalize_patches_uses_the_unbiased_variance_and_inverts():
    patches = jnp.asarray(GOLDEN["patches"])
    normalised, mean, std = ops.normalize_patches(patches)
    chex.assert_trees_all_close(normalised, GOLDEN["norm_target"], atol=1e-6)
    chex.assert_trees_all_close(normalised * std + mean, patches, atol=1e-5)


@settings(max_examples=6, deadline=None)
@given(
    patch=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    grid=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    channels=st.integers(1, 4),
)
def test_unpatchify_inverts_patchify(patch, grid, channels):
    shape = (2, patch[0] * grid[0], patch[1] * grid[1], channels)
    images = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    back = ops.unpatchify(ops.patchify(jnp.asarray(images), patch), patch, grid)
    np.testing.assert_array_equal(back, images)


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(UserError, match=r"30×32 pixels .* 8×8"):
        ops.patchify(jnp.zeros((1, 30, 32, 3)), 8)
    with pytest.raises(UserError, match="5 patches of 192 values"):
        ops.unpatchify(jnp.zeros((1, 5, 192)), 8, (2, 3))


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1000))
def test_gather_inverts_scatter(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2, 3, 4)).astype(np.float32)
    ids = np.stack([rng.permutation(7)[:3] for _ in range(2)]).astype(np.int32)
    full = ops.scatter_tokens(jnp.asarray(x), jnp.asarray(ids), 7)
    np.testing.assert_array_equal(ops.gather_tokens(full, jnp.asarray(ids)), x)
    # What was not written is zero, so nothing else adds to the sum.
    np.testing.assert_allclose(np.abs(full).sum(), np.abs(x).sum(), rtol=1e-6)


def test_scatter_fills_the_other_places_with_a_row():
    full = ops.scatter_tokens(jnp.ones((1, 1, 2)), jnp.array([[2]]), 3, fill=jnp.array([5.0, 6.0]))
    np.testing.assert_array_equal(full[0], [[5, 6], [5, 6], [1, 1]])
