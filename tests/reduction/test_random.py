"""Random, the baseline."""

import jax
import numpy as np
from published_models import prefixed, stage
from support import quick_compile

from jaxprune.reduction.random import Random


def _draw(given, **options):
    """A function of a key (or None) to the kept rows of three images."""
    tokens = prefixed(np.zeros((3, given.tokens_in + 1, 4), np.float32))
    draw = jax.jit(
        lambda key: Random(given, **options)(tokens, None, key=key)[1].kept, compiler_options=quick_compile()
    )
    return lambda key=None: np.asarray(draw(key))


def test_without_a_key_the_draw_is_fixed_by_seed_and_stage():
    given = stage(20, 8)
    kept = _draw(given)()
    np.testing.assert_array_equal(kept, _draw(given)())
    np.testing.assert_array_equal(kept, kept[:1].repeat(3, 0))
    assert (_draw(given, seed=1)() != kept).any() and (_draw(given._replace(index=1))() != kept).any()


def test_with_a_key_every_image_draws_for_itself_and_all_rows_alike():
    draw, counts = _draw(stage(10, 4)), np.zeros(10)
    for seed in range(40):
        kept = draw(jax.random.key(seed))
        assert (np.diff(kept, axis=1) > 0).all()
        counts += np.bincount(kept.ravel(), minlength=10)
    assert (kept[0] != kept[1]).any()
    np.testing.assert_allclose(counts / counts.sum(), 0.1, atol=0.03)
