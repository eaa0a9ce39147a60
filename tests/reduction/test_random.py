"""Random, the baseline."""

import jax
import jax.numpy as jnp
import numpy as np
from published_models import prefixed, stage

from jaxprune.reduction.random import Random


def _kept(given, key=None, **options):
    tokens = prefixed(np.zeros((3, given.rows_in + 1, 4), np.float32))
    return np.asarray(Random(given, **options)(tokens, None, key=key)[1].kept)


def test_without_a_key_the_draw_is_fixed_by_seed_and_stage():
    given = stage(20, 8)
    kept = _kept(given)
    np.testing.assert_array_equal(kept, _kept(given))
    np.testing.assert_array_equal(kept, kept[:1].repeat(3, 0))
    assert (_kept(given, seed=1) != kept).any() and (_kept(given._replace(index=1)) != kept).any()


def test_with_a_key_every_image_draws_for_itself_and_all_rows_alike():
    given, counts = stage(10, 4), np.zeros(10)
    for seed in range(40):
        kept = _kept(given, jax.random.key(seed))
        assert (np.diff(kept, axis=1) > 0).all()
        counts += np.bincount(kept.ravel(), minlength=10)
    assert (kept[0] != kept[1]).any()
    np.testing.assert_allclose(counts / counts.sum(), 0.1, atol=0.03)
    assert jnp.issubdtype(kept.dtype, jnp.integer)
