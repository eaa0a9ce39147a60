"""Pareto Testing: hand-computed cases, and how often what it certifies is wrong."""

import math

import numpy as np
import pytest
from scipy import stats

from jaxprune.errors import UserError
from jaxprune.tune import pareto_testing


def test_p_values_are_the_sum_of_the_binomial_terms():
    by_hand = sum(math.comb(12, k) * 0.3**k * 0.7 ** (12 - k) for k in range(3))
    assert pareto_testing.p_value(2, 12, 0.3) == pytest.approx(by_hand, rel=1e-12)
    assert pareto_testing.p_value(0, 5, 0.0) == 1.0  # nothing shows a risk of 0
    assert pareto_testing.p_value(5, 5, 0.4) == 1.0


def test_the_limit_is_the_risk_at_which_the_test_turns():
    for errors, images, delta in ((0, 30, 0.1), (4, 50, 0.05), (49, 50, 0.2)):
        limit = pareto_testing.risk_limit(errors, images, delta)
        assert pareto_testing.p_value(errors, images, limit) == pytest.approx(delta, rel=1e-9)
    assert pareto_testing.risk_limit(50, 50, 0.1) == 1.0
    assert pareto_testing.fewest_images(0.1, 0.1) == 22  # 0.9 ** 22 < 0.1 < 0.9 ** 21
    assert pareto_testing.fixed_sequence([0], 22, 0.1, 0.1)[0].passed
    assert not pareto_testing.fixed_sequence([0], 21, 0.1, 0.1)[0].passed


def test_the_front_goes_from_the_safest_to_the_cheapest():
    # The second is dearer and riskier than the first, and the last is the fourth again.
    assert pareto_testing.front([5.0, 6.0, 3.0, 2.0, 2.0], [0.1, 0.2, 0.2, 0.4, 0.4]) == [0, 2, 3]


def test_the_sequence_ends_at_its_first_failure_and_computes_nothing_behind_it():
    counted = []

    def errors():
        for count in (0, 30, 0):
            counted.append(count)
            yield count

    tests = pareto_testing.fixed_sequence(errors(), 100, 0.1, 0.1)
    assert [test.passed for test in tests] == [True, False] and counted == [0, 30]


def test_nothing_is_certified_where_all_are_too_risky_or_images_too_few():
    losses = np.ones((3, 200), int)
    assert pareto_testing.choose([3.0, 2.0, 1.0], losses, losses, 0.1, 0.1)[0] is None
    few = np.zeros((3, 10), int)
    assert pareto_testing.choose([3.0, 2.0, 1.0], few, few, 0.1, 0.1)[0] is None
    chosen, order, _ = pareto_testing.choose([3.0, 2.0, 1.0], few.repeat(9, 1), few.repeat(9, 1), 0.1, 0.1)
    assert chosen == 2 and order == [2]


def test_what_makes_no_sense_is_refused():
    with pytest.raises(UserError, match="delta"):
        pareto_testing.fixed_sequence([1], 10, 0.1, 1.0)
    with pytest.raises(UserError, match="between 0 and 1"):
        pareto_testing.fewest_images(0.0, 0.1)


@pytest.mark.parametrize(("alpha", "delta"), [(0.1, 0.1), pytest.param(0.05, 0.2, marks=pytest.mark.slow)])
def test_violations_over_a_thousand_splits_stay_below_delta(alpha, delta):
    """Images differ in difficulty, plans err on the same ones, and several plans are just above alpha."""
    rng, images = np.random.default_rng(0), 4000
    costs = np.linspace(1.0, 0.3, 12)
    difficulty = rng.uniform(size=images)
    rates = np.array([0.2, 0.5, 0.8, 0.95, 1.02, 1.04, 1.06, 1.1, 1.5, 2.0, 3.0, 5.0]) * alpha
    losses = ((difficulty + 0.05 * rng.normal(size=(12, images))).argsort(1).argsort(1) < rates[:, None] * images) + 0
    risks = losses.mean(1)
    splits, wrong, none = 1000, 0, 0
    for _ in range(splits):
        drawn = rng.integers(0, images, 600)
        chosen, *_ = pareto_testing.choose(costs, losses[:, drawn[:300]], losses[:, drawn[300:]], alpha, delta)
        wrong += chosen is not None and risks[chosen] > alpha
        none += chosen is None
    assert wrong / splits <= delta + 2 * math.sqrt(delta * (1 - delta) / splits)
    # Neither by certifying nothing, nor by never erring: plans just above alpha pass about as often as is allowed.
    assert none < splits / 2 and wrong / splits > delta / 10


def test_the_limits_of_all_tested_plans_hold_together():
    """Over plans of equal risk, the limit of the one that is chosen; some plan's own limit fails more often than δ."""
    rng, alpha, delta, images = np.random.default_rng(0), 0.2, 0.1, 300
    risk, wrong, alone, trials = 0.1, 0, 0, 2000
    for _ in range(trials):
        errors = rng.binomial(images, risk, 3)
        tests = pareto_testing.fixed_sequence(errors, images, alpha, delta)
        wrong += any(risk > test.limit for test in tests)
        alone += any(risk > pareto_testing.risk_limit(int(count), images, delta) for count in errors)
    assert alone / trials > 1.5 * delta  # what the limits of single plans would claim
    assert wrong / trials <= delta


def test_behind_a_failure_the_limit_of_a_certified_plan_is_the_allowed_risk():
    first, failed = pareto_testing.fixed_sequence([0, 30], 100, 0.1, 0.1)
    assert first.passed and first.limit == 0.1 and not failed.passed
    assert failed.limit == pareto_testing.risk_limit(30, 100, 0.1)
    both = pareto_testing.fixed_sequence([0, 3], 100, 0.1, 0.1)
    assert [test.limit for test in both] == [pareto_testing.risk_limit(3, 100, 0.1)] * 2


def test_the_error_of_a_single_plan_just_above_alpha_is_the_binomials():
    passes = [e for e in range(301) if pareto_testing.fixed_sequence([e], 300, 0.1, 0.1)[0].passed]
    assert stats.binom.cdf(max(passes), 300, 0.1) <= 0.1 < stats.binom.cdf(max(passes) + 1, 300, 0.1)


def test_any_risk_is_allowed_where_the_bound_is_one():
    assert pareto_testing.of_errors(20, 20, 1.0, 0.1).passed
    assert pareto_testing.of_losses(np.ones(20), 1.0, 0.1, graded=True).passed
    assert not pareto_testing.of_errors(20, 20, 0.99, 0.1).passed
