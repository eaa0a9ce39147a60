"""Alignment of features against published values, in one batch or many, and under what it must not see."""

import numpy as np
import pytest
from support import golden, in_names

from jaxprune.errors import UserError
from jaxprune.measures import alignment

FILE = golden("token_reduction/metric_features")


def products(first, second, size=0):
    found = alignment.Alignment()
    for start in range(0, len(first), size or len(first)):
        rows = slice(start, start + (size or len(first)))
        found.update(first[rows], second[rows])
    return found.products()


@pytest.mark.parametrize("size", [0, 7])
@pytest.mark.parametrize("case", in_names(FILE, r"A_(\d+)"))
def test_published_features(case, size):
    first, second = FILE[f"A_{case}"].T, FILE[f"B_{case}"].T
    found = products(first, second, size)
    np.testing.assert_allclose(alignment.canonical_correlations(found), FILE[f"cca_rho_{case}"], atol=1e-9)
    for name, value in {
        "procrustes": alignment.procrustes_distance(found),
        "cka_dist": alignment.cka_distance(found),
        "cka_prime_dist": alignment.cka_prime_distance(found),
        "mean_cca": 1 - alignment.cca_distance(found),
        "mean_sq_cca": 1 - alignment.cca_distance(found, squared=True),
        "pwcca_AB": alignment.pwcca_distance(found),
        "pwcca_BA": alignment.pwcca_distance(products(second, first, size)),
    }.items():
        np.testing.assert_allclose(value, FILE[f"{name}_{case}"], atol=1e-9, err_msg=name)


def test_large_means_cost_no_digits():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(60, 5)), rng.normal(size=(60, 4))
    moved = products(first + 1e6, second - 1e5, size=9)
    for measure in (alignment.procrustes_distance, alignment.cka_distance, alignment.pwcca_distance):
        assert measure(moved) == pytest.approx(measure(products(first, second)), abs=1e-8)


def test_rotations_scales_and_invertible_maps():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(80, 6)) * np.array([9, 5, 3, 2, 1, 0.5])
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    rotated, mapped = (
        products(features, 3 * features @ rotation),
        products(features, features @ rng.normal(size=(6, 6))),
    )
    for measure in (alignment.procrustes_distance, alignment.cka_distance, alignment.pwcca_distance):
        assert measure(rotated) == pytest.approx(0, abs=1e-9)
    assert alignment.svcca_distance(rotated) == pytest.approx(0, abs=1e-9)
    assert alignment.cca_distance(mapped) == pytest.approx(0, abs=1e-9) and alignment.cka_distance(mapped) > 0.01


def test_svcca_leaves_out_directions_that_hardly_vary():
    rng = np.random.default_rng(2)
    signal = rng.normal(size=(200, 2))
    noisy = lambda: np.concatenate([signal, 0.01 * rng.normal(size=(200, 3))], axis=1)
    found = products(noisy(), noisy())
    assert alignment.svcca_distance(found) == pytest.approx(0, abs=1e-9) and alignment.cca_distance(found) > 0.4


def test_features_of_lower_rank_do_not_blow_up():
    rng = np.random.default_rng(3)
    features = rng.normal(size=(50, 3)) @ rng.normal(size=(3, 6))
    found = products(features, rng.normal(size=(50, 4)))
    assert (alignment.canonical_correlations(found) <= 1 + 1e-9).all()
    assert 0 < alignment.pwcca_distance(found) < 1


def test_few_images_are_refused():
    features = np.random.default_rng(4).normal(size=(6, 6))
    with pytest.raises(UserError, match="at least 7"):
        alignment.canonical_correlations(products(features, features))
