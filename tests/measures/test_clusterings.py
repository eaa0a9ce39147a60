"""Homogeneity, completeness and NMI of clusterings against published values, and their limits."""

import numpy as np
import pytest
from support import golden, in_names

from jaxprune.measures.clusterings import clustering_agreement

FILE = golden("token_reduction/metric_clusters")


@pytest.mark.parametrize("case", in_names(FILE, r"cluster1_(\d+)"))
def test_published_clusterings(case):
    first, second = FILE[f"cluster1_{case}"], FILE[f"cluster2_{case}"]
    rates, capacity = clustering_agreement(second, first), clustering_agreement(first, second)
    for name, found, nmi in (("rates", rates, "v_rates"), ("capacity", capacity, "nmi_arithmetic")):
        wanted = [FILE[f"homogeneity_{name}_{case}"], FILE[f"completeness_{name}_{case}"], FILE[f"{nmi}_{case}"]]
        np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_names_of_clusters_do_not_matter_and_single_ones_agree():
    rng = np.random.default_rng(0)
    labels = rng.integers(-1, 5, 40)
    assert clustering_agreement(labels, 9 - 3 * labels) == pytest.approx((1, 1, 1))
    assert clustering_agreement(np.zeros(4, int), np.ones(4, int)) == (1, 1, 1)
    both = clustering_agreement(np.stack([labels, np.zeros(40, int)]), np.stack([9 - 3 * labels, np.arange(40)]))
    np.testing.assert_allclose(both, [[1, 1], [1, 0], [1, 0]], atol=1e-12)
    # Where all are one class, any clustering is homogeneous; it tells nothing.
    assert clustering_agreement(np.zeros(4, int), np.arange(4)) == (1, 0, 0)


def test_large_names_of_clusters_are_told_apart():
    """Pairs of names are numbered: with 2¹⁶ names of each, the numbers take more than four bytes."""
    found = clustering_agreement(np.array([[0, 2**16, 0]]), np.array([[0, 0, 2**16 - 1]]))
    small = clustering_agreement(np.array([[0, 1, 0]]), np.array([[0, 0, 1]]))
    np.testing.assert_array_equal(found, small)
