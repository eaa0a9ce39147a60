"""Heads on features: nearest neighbours and a linear one."""

import numpy as np
import pytest

from jaxprune.errors import UserError
from jaxprune.measures.knn import knn_classes, nearest
from jaxprune.measures.linear_head import fit_linear_head

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 5, 200)
CLOUDS = (RNG.normal(size=(5, 16))[LABELS] * 3 + RNG.normal(size=(200, 16))).astype(np.float32)


def test_neighbours_vote_by_their_cosine():
    features = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    labels = np.array([0, 0, 1])
    # One close neighbour outweighs two that are not.
    assert knn_classes(features, labels, np.array([[0.05, 1]], np.float32), k=3) == [1]
    # With votes of equal weight the two win.
    assert knn_classes(features, labels, np.array([[0.05, 1]], np.float32), k=3, temperature=1e6) == [0]


def test_neighbours_are_compared_in_batches_alike():
    whole = knn_classes(CLOUDS[:150], LABELS[:150], CLOUDS[150:])
    np.testing.assert_array_equal(whole, knn_classes(CLOUDS[:150], LABELS[:150], CLOUDS[150:], batch_size=7))
    assert (whole == LABELS[150:]).mean() > 0.9


def test_the_nearest_come_in_order():
    features = np.array([[1, 0], [5, 5], [0, 2]], np.float32)
    np.testing.assert_array_equal(nearest(features, np.array([[0.1, 1]], np.float32), k=9), [[2, 1, 0]])


def test_neighbours_need_some():
    with pytest.raises(UserError, match="20 nearest of 0 features"):
        knn_classes(np.zeros((0, 2), np.float32), np.zeros(0, int), CLOUDS)


def test_a_linear_head_is_where_the_gradient_vanishes():
    """By the closed form of the gradient of logistic regression with an L2 term."""
    head = fit_linear_head(CLOUDS[:150], LABELS[:150], 5, l2=0.01, steps=500)
    logits = head.logits(CLOUDS[:150])
    shares = np.exp(logits - logits.max(1, keepdims=True))
    error = shares / shares.sum(1, keepdims=True) - np.eye(5)[LABELS[:150]]
    x = (CLOUDS[:150] - head.mean) / head.scale
    np.testing.assert_allclose(x.T @ error / 150 + 0.01 * head.kernel, 0, atol=1e-4)
    assert (head.classes(CLOUDS[150:]) == LABELS[150:]).mean() > 0.9
