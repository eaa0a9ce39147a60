"""Measures of how alike two maps are, against published values and by what each of them means."""

import numpy as np
import pytest
from scipy import optimize
from scipy.spatial import distance
from support import golden, golden_names, in_names

from jaxprune.measures import heat_maps


@pytest.mark.parametrize("name", golden_names("token_reduction/metric_heatmap_*"))
def test_published_maps(name):
    file = golden(name)
    for case in in_names(file, r"map1_(\d+)"):
        first, second = file[f"map1_{case}"], file[f"map2_{case}"]
        found = {
            "kl_12": heat_maps.kl_divergence(first, second),
            "kl_21": heat_maps.kl_divergence(second, first),
            "js_reference": heat_maps.js_divergence(first, second, reference=True),
            "jsd_standard_base2": heat_maps.js_divergence(first, second),
            "pearson": heat_maps.pearson(first, second),
            "spearman": heat_maps.spearman(first, second),
            "hist_similarity": heat_maps.similarity(first, second),
            "emd": heat_maps.earth_movers_distance(first, second),
        }
        wanted = {name: float(file[f"{name}_{case}"]) for name in found}
        assert found == pytest.approx(wanted, abs=1e-9)


def test_transport_is_that_of_whole_maps_on_any_grid():
    rng = np.random.default_rng(0)
    first, second = rng.random((3, 5)), rng.random((3, 5))
    one, other = (values.ravel() / values.sum() for values in (first, second))
    places = np.stack(np.unravel_index(np.arange(15), (3, 5)), axis=1)
    flow = np.concatenate([np.kron(np.eye(15), np.ones((1, 15))), np.kron(np.ones((1, 15)), np.eye(15))])
    costs = distance.cdist(places, places).ravel()
    whole = optimize.linprog(costs, A_eq=flow[:-1], b_eq=np.concatenate([one, other])[:-1]).fun
    assert heat_maps.earth_movers_distance(first, second) == pytest.approx(whole, abs=1e-9)
    corner, centre = np.zeros((4, 5)), np.zeros((4, 5))
    corner[0, 0], centre[3, 4] = 2, 7
    assert heat_maps.earth_movers_distance(corner, centre) == pytest.approx(5)
    assert heat_maps.earth_movers_distance(first, 2 * first) == pytest.approx(0, abs=1e-12)


def test_limits_of_the_measures():
    same, flat = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
    assert heat_maps.similarity(same, 2 * same) == pytest.approx(1)
    assert np.isnan(heat_maps.similarity(same, flat)) and np.isnan(heat_maps.pearson(same, flat))
    apart = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    assert heat_maps.js_divergence(*apart) == pytest.approx(1) and heat_maps.kl_divergence(*apart) == np.inf


@pytest.mark.parametrize("value", [0.1, 1 / 3, 7.0])
def test_constant_maps_have_no_correlation(value):
    # The mean of 196 times 0.1 is not 0.1.
    flat, other = np.full((14, 14), value), np.random.default_rng(0).random((14, 14))
    for measure in (heat_maps.pearson, heat_maps.spearman, heat_maps.similarity):
        for maps in ((flat, flat), (flat, other), (other, flat)):
            assert np.isnan(measure(*maps)), (measure, maps)


def test_maps_without_mass_have_no_distance():
    empty, other = np.zeros((3, 3)), np.random.default_rng(0).random((3, 3))
    for maps in ((empty, empty), (empty, other), (other, empty)):
        assert all(np.isnan(value) for value in heat_maps.measures(*maps).values()), maps


def test_depths_count_whole_blocks():
    masks = [np.array([[True, True, False]]), np.array([[True, False, False]])]
    np.testing.assert_array_equal(heat_maps.depths(masks, (-1, 2), 4), [[4, 2, 0]])
