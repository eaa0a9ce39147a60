import jax.numpy as jnp
import numpy as np
import pytest
from support import golden

from jaxprune import metrics


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
    on_host = metrics.kendall_tau(np.asarray(left, np.float64), np.asarray(right))
    np.testing.assert_allclose(on_host, [1, -1, 4 / 5, 0], rtol=1e-15)
    assert isinstance(on_host, np.ndarray)
    unsigned = np.asarray([[1, 2, 3, 4]], np.uint8), np.asarray([[2, 1, 4, 3]], np.uint8)
    np.testing.assert_allclose(metrics.kendall_tau(*unsigned), [1 / 3])
