import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import golden

from jaxprune import metrics


def test_accuracy_counts_only_where():
    logits = jnp.array([[0.0, 1.0, 0.5], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    labels = jnp.array([1, 1, 2])
    assert metrics.compute({"acc": metrics.accuracy(logits, labels)}) == {"acc": pytest.approx(2 / 3)}
    where = jnp.array([True, True, False])
    assert metrics.compute({"acc": metrics.accuracy(logits, labels, where)}) == {"acc": 0.5}
    assert metrics.compute({"top2": metrics.top_k_accuracy(logits, labels, 2, where)}) == {"top2": 1.0}


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_top_one_is_accuracy_ties_included(seed):
    rng = np.random.default_rng(seed)
    logits, labels = jnp.asarray(rng.integers(0, 3, (6, 4)), jnp.float32), jnp.asarray(rng.integers(0, 4, 6))
    assert metrics.top_k_accuracy(logits, labels, 1) == metrics.accuracy(logits, labels)


def test_not_a_number_is_no_hit():
    logits = jnp.full((2, 6), jnp.nan)
    assert metrics.top_k_accuracy(logits, jnp.array([0, 5]))[0] == 0


def test_merging_batches_equals_one_batch_and_nothing_is_nan():
    values = jnp.arange(6.0)
    halves = [{"loss": metrics.average(values[:2])}, {"loss": metrics.average(values[2:])}]
    assert metrics.compute(metrics.merge(*halves)) == metrics.compute({"loss": metrics.average(values)})
    assert set(metrics.merge(halves[0], {"acc": (1, 2)})) == {"loss", "acc"}
    empty = metrics.compute({"loss": metrics.average(values, jnp.zeros(6, bool))})
    assert math.isnan(empty["loss"])


def test_student_interval():
    mean, half = metrics.student_interval([1.0, 2.0, 3.0])
    assert mean == 2.0 and half == pytest.approx(4.30265 / 3**0.5, rel=1e-5)
    assert np.isnan(metrics.student_interval([1.0])[1])


def test_wilson_interval():
    low, high = metrics.wilson_interval(9, 10)
    assert (low, high) == (pytest.approx(0.59585, abs=1e-4), pytest.approx(0.98212, abs=1e-4))
    assert metrics.wilson_interval(0, 10)[0] == pytest.approx(0, abs=1e-12)
    assert metrics.wilson_interval(0, 0) == (0.0, 1.0)


def test_average_precision():
    table = golden("token_reduction/losses")
    scores, labels = table["map_scores"], table["map_targets"]
    np.testing.assert_allclose(metrics.average_precision(scores, labels), table["ap"], rtol=1e-6)
    assert 100 * metrics.mean_average_precision(scores, labels) == pytest.approx(float(table["mAP"]), rel=1e-6)
    np.testing.assert_array_equal(metrics.average_precision(np.ones((3, 1)), np.zeros((3, 1))), [0])


def test_kendalls_tau_with_and_without_ties():
    left = jnp.array([[1.0, 2, 3, 4], [1, 2, 3, 4], [1, 1, 2, 3], [5, 5, 5, 5]])
    right = jnp.array([[10, 20, 30, 40], [4, 3, 2, 1], [1, 2, 2, 3], [1, 2, 3, 4]])
    # The third: four pairs agree, one is tied on the left and one on the right, of six.
    np.testing.assert_allclose(metrics.kendall_tau(left, right), [1, -1, 4 / 5, 0], rtol=1e-6)


def test_patch_recall_counts():
    ranks = jnp.array([[0, 1, 2, 3], [3, 2, 1, 0]])
    positive = jnp.array([[True, False, False, True], [False, False, False, False]])
    hits, total = metrics.patch_recall(ranks, positive, (1, 2, 4))
    np.testing.assert_array_equal(hits, [[1, 1, 2], [0, 0, 0]])
    np.testing.assert_array_equal(total, [2, 0])
