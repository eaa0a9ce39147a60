"""Thresholds with a guarantee: it holds over many splits, and what cannot be shown is not claimed."""

import functools

import numpy as np
import pytest

from jaxprune.errors import UserError
from jaxprune.tune.cascades import certified_path, certified_thresholds

COSTS = np.array([1.0, 2.0, 6.0])


def population(count, seed):
    """Images of some difficulty: exits are the less sure, and the more often wrong, the harder an image is."""
    rng = np.random.default_rng(seed)
    hard = rng.beta(1, 2, count)
    ability = np.array([0.35, 0.55, 1.0])[:, None]
    sure = np.clip(1 - hard + rng.normal(0, 0.15, (3, count)), 0, 1)
    return sure, (hard > ability + rng.normal(0, 0.1, (3, count))) & (np.arange(3) < 2)[:, None]


@functools.cache
def everybody():
    return population(50_000, 10_000)


def risk(thresholds):
    from jaxprune.dynamic.exit_policy import exit_of, operate

    sure, wrong = everybody()
    leaving = exit_of(sure, thresholds)
    return wrong[leaving, np.arange(len(leaving))].mean(), operate(sure, thresholds, COSTS).cost


@pytest.mark.slow
def test_the_guarantee_holds_over_splits():
    alpha, delta, splits = 0.05, 0.1, 200
    over, costs = 0, []
    for seed in range(splits):
        sure, wrong = population(500, seed)
        certified = certified_thresholds(sure, wrong, COSTS, alpha=alpha, delta=delta, seed=seed)
        true_risk, cost = risk(certified.thresholds)
        over, costs = over + (true_risk > alpha), [*costs, cost]
    assert over <= splits * delta + 2 * np.sqrt(splits * delta * (1 - delta))
    assert np.mean(costs) < 0.75 * COSTS[-1]


def test_one_delta_covers_the_whole_path():
    alpha, delta, splits = 0.05, 0.1, 50
    over, steps = 0, []
    for seed in range(splits):
        sure, wrong = population(500, seed)
        path = certified_path(sure, wrong, COSTS, alpha=alpha, delta=delta, seed=seed)
        chosen = certified_thresholds(sure, wrong, COSTS, alpha=alpha, delta=delta, seed=seed)
        assert not path or (path[-1].thresholds == chosen.thresholds).all()
        assert all(step.test.passed and step.test.limit <= alpha for step in path)
        over, steps = over + any(risk(step.thresholds)[0] > alpha for step in path[::-4]), [*steps, len(path)]
    assert over <= splits * delta + 2 * np.sqrt(splits * delta * (1 - delta))
    assert np.mean(steps) > 3


def halves(count, seed=0):
    """The images that choose thresholds, and those that test them."""
    order = np.random.default_rng(seed).permutation(count)
    return order[count // 2 :], order[: count // 2]


def test_thresholds_are_tested_on_images_that_did_not_choose_them():
    _, testing = halves(400)
    sure, wrong = np.random.default_rng(0).random((2, 400)), np.zeros((2, 400), bool)
    sure[1] = 1.0
    assert certified_thresholds(sure, wrong, COSTS[:2], alpha=0.1).test is not None
    wrong[0, testing] = True  # leaving early is right wherever the thresholds are chosen, and wrong elsewhere
    certified = certified_thresholds(sure, wrong, COSTS[:2], alpha=0.1)
    assert certified.test is None or certified.cost > 0.85 * COSTS[1]


def test_the_cost_is_that_of_the_images_that_test():
    choosing, testing = halves(400)
    sure, wrong = np.ones((2, 400)), np.zeros((2, 400), bool)
    sure[0, choosing], sure[0, testing] = np.linspace(0.5, 1, 200), np.linspace(0.1, 0.2, 200)
    wrong[0, choosing] = sure[0, choosing] < 0.75
    certified = certified_thresholds(sure, wrong, COSTS[:2], alpha=0.1)
    stay = sure[0, testing] < certified.thresholds[0]
    assert certified.cost == pytest.approx(np.where(stay, COSTS[1], COSTS[0]).mean())


def test_nothing_is_certified_that_is_not_shown():
    rng = np.random.default_rng(0)
    sure, wrong = rng.random((2, 100)), np.array([[True] * 100, [True] * 100])
    certified = certified_thresholds(sure, wrong, COSTS[:2], alpha=0.1)
    assert certified.test is None and certified.thresholds[0] == 1e8 and certified.cost == COSTS[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sure, wrong: (sure[:, :20], wrong[:, :20], COSTS), "20 images are too few"),
        (lambda sure, wrong: (sure, wrong[:2], COSTS), "do not fit"),
        (lambda sure, wrong: (sure, wrong, COSTS[:2]), "do not fit"),
    ],
)
def test_what_cannot_be_certified_is_refused(change, message):
    with pytest.raises(UserError, match=message):
        certified_thresholds(*change(*population(200, 0)), alpha=0.05)
