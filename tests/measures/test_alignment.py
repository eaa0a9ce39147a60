"""Alignment of features against published values, in one chunk or many, and under what it must not see."""

import numpy as np
import pytest
from support import golden, in_names

from jaxprune.measures import alignment

FILE = golden("token_reduction/metric_features")


def distances(first, second):
    return alignment.distances(alignment.features(first), alignment.features(second))


@pytest.mark.parametrize("chunk", [4096, 7])
@pytest.mark.parametrize("case", in_names(FILE, r"A_(\d+)"))
def test_published_features(case, chunk, monkeypatch):
    monkeypatch.setattr(alignment, "_CHUNK", chunk)
    first, second = FILE[f"A_{case}"].T, FILE[f"B_{case}"].T
    there, back = distances(first, second), distances(second, first)
    for name, value in {
        "procrustes": there["Procrustes"],
        "cka_dist": there["CKA"],
        "pwcca_AB": there["PWCCA"],
        "pwcca_BA": back["PWCCA"],
    }.items():
        np.testing.assert_allclose(value, FILE[f"{name}_{case}"], atol=1e-9, err_msg=name)


def test_svcca_is_the_mean_correlation_where_all_directions_matter():
    rng = np.random.default_rng(0)
    first = rng.normal(size=(90, 3))
    second = first @ rng.normal(size=(3, 3)) + rng.normal(size=(90, 3))
    units = (np.linalg.qr(values - values.mean(0))[0] for values in (first, second))
    correlations = np.linalg.svd(np.matmul(*(unit if place else unit.T for place, unit in enumerate(units))))[1]
    assert distances(first, second)["SVCCA"] == pytest.approx(1 - correlations.mean(), abs=1e-9)


def test_large_means_cost_no_digits(monkeypatch):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(60, 5)), rng.normal(size=(60, 4))
    monkeypatch.setattr(alignment, "_CHUNK", 9)
    assert distances(first + 1e6, second - 1e5) == pytest.approx(distances(first, second), abs=1e-8)


def test_rotations_scales_and_invertible_maps():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(80, 6)) * np.array([9, 5, 3, 2, 1, 0.5])
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    zero = dict.fromkeys(("Procrustes", "CKA", "PWCCA", "SVCCA"), 0)
    assert distances(features, 3 * features @ rotation) == pytest.approx(zero, abs=1e-9)
    mapped = distances(features, features @ rng.normal(size=(6, 6)))
    assert mapped["PWCCA"] == pytest.approx(0, abs=1e-9) and mapped["CKA"] > 0.01


def test_svcca_leaves_out_directions_that_hardly_vary():
    rng = np.random.default_rng(2)
    signal = rng.normal(size=(200, 2))
    noisy = lambda: np.concatenate([signal, 0.01 * rng.normal(size=(200, 3))], axis=1)
    apart = distances(noisy(), noisy())
    assert apart["SVCCA"] == pytest.approx(0, abs=1e-9) and apart["PWCCA"] > 0.01


def test_features_of_lower_rank_do_not_blow_up():
    rng = np.random.default_rng(3)
    apart = distances(rng.normal(size=(50, 3)) @ rng.normal(size=(3, 6)), rng.normal(size=(50, 4)))
    assert 0 < apart["PWCCA"] < 1 and 0 <= apart["SVCCA"] <= 1


def test_with_few_images_canonical_correlations_say_nothing():
    features = np.random.default_rng(4).normal(size=(6, 6))
    apart = distances(features, 2 * features)
    assert np.isnan([apart["PWCCA"], apart["SVCCA"]]).all() and apart["CKA"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("values", [np.ones((1, 3)), np.ones((5, 3))], ids=["one image", "one feature"])
def test_features_that_do_not_vary_have_no_distance(values):
    others = np.random.default_rng(0).normal(size=values.shape)
    for found in (distances(values, others), distances(others, values)):
        assert len(found) == 4 and np.isnan(list(found.values())).all()
