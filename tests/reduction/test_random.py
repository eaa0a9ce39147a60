"""Random, the baseline."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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


@pytest.mark.parametrize("seed", [None, 0])
def test_absent_rows_are_the_last_to_be_kept(seed):
    there = np.array([[1, 1, 0, 0, 1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]], np.float32)
    tokens = prefixed(np.zeros((2, 11, 4), np.float32))._replace(
        policy=jnp.pad(there, ((0, 0), (1, 0)), constant_values=1)
    )
    reducer = Random(stage(10, 4, has_absent=True))
    reduce = jax.jit(lambda key: reducer(tokens, None, key=key), compiler_options=quick_compile())
    reduced, report = reduce(None if seed is None else jax.random.key(seed))
    np.testing.assert_array_equal(reduced.policy, 1)
    kept = np.asarray(report.kept)
    assert kept[0].tolist() == [0, 1, 4, 7] and set(kept[1]) < {5, 6, 7, 8, 9} and (np.diff(kept[1]) > 0).all()


def test_a_draw_is_the_same_where_rows_could_be_absent_and_are_not():
    given = stage(20, 8)
    np.testing.assert_array_equal(_draw(given._replace(has_absent=True))(), _draw(given)())
