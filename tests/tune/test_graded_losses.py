"""Tests of a mean of graded losses: valid for any distribution, sharper than by counting where losses vary little."""

import math

import numpy as np
import pytest

from jaxprune.errors import UserError
from jaxprune.tune import graded_losses, pareto_testing

ALPHA, DELTA = 0.1, 0.1


def drawn(rng, name, trials, images):
    """Losses whose mean is ALPHA exactly: the hardest case that must not pass."""
    shape = (trials, images)
    return {
        "0 or 1": lambda: (rng.random(shape) < ALPHA) + 0.0,
        "0 or a half": lambda: (rng.random(shape) < 2 * ALPHA) / 2,
        "much alike": lambda: rng.beta(ALPHA * 50, (1 - ALPHA) * 50, shape),
        "few large": lambda: rng.beta(ALPHA * 0.3, (1 - ALPHA) * 0.3, shape),
        "all equal": lambda: np.full(shape, ALPHA),
    }[name]()


@pytest.mark.parametrize("name", ["0 or 1", "0 or a half", "much alike", "few large", "all equal"])
@pytest.mark.parametrize("images", [30, 200])
def test_a_mean_loss_of_alpha_passes_in_at_most_delta_of_all_cases(name, images):
    trials = 1000
    losses = drawn(np.random.default_rng(0), name, trials, images)
    values = np.array([graded_losses.p_value(row, ALPHA) for row in losses])
    for level in (0.02, DELTA, 0.4):
        assert (values <= level).mean() <= level + 2 * math.sqrt(level * (1 - level) / trials)
    assert ((values > 0) & (values <= 1)).all()


def test_the_limit_is_below_the_mean_in_at_most_delta_of_all_cases():
    losses = np.random.default_rng(1).beta(0.6, 5.4, (100, 100))  # of mean .1
    limits = np.array([graded_losses.risk_limit(row, DELTA) for row in losses])
    assert (limits < 0.1).mean() <= DELTA + 2 * math.sqrt(DELTA * (1 - DELTA) / 100)
    assert np.median(limits) < 0.17  # by counting a loss as an error it would be about .3


def test_p_values_rise_with_every_loss_fall_with_alpha_and_forget_the_order():
    rng = np.random.default_rng(2)
    losses = rng.beta(1, 20, 60)
    value = graded_losses.p_value(losses, ALPHA)
    assert 0 < value < 1
    for image in range(0, 60, 7):
        worse = losses.copy()
        worse[image] = min(losses[image] + 0.2, 1.0)
        assert graded_losses.p_value(worse, ALPHA) > value
    values = [graded_losses.p_value(losses, alpha) for alpha in np.linspace(0.01, 0.99, 50)]
    assert (np.diff(values) <= 0).all() and values[0] == 1.0
    assert graded_losses.p_value(rng.permutation(losses), ALPHA) == pytest.approx(value, rel=1e-12)


def test_where_losses_are_0_or_1_they_are_above_the_exact_ones_of_the_binomial():
    for errors in range(12):
        losses = np.arange(150) < errors
        exact = pareto_testing.p_value(errors, 150, ALPHA)
        assert exact <= graded_losses.p_value(losses, ALPHA)
    # Without any, only the other gamblers' shares are lost.
    none = graded_losses.p_value(np.zeros(40), ALPHA)
    assert 0.9**40 < none <= 0.9**40 / graded_losses.WEIGHTS[0]
    assert graded_losses.WEIGHTS.sum() == pytest.approx(1.0)


def test_shares_of_pixels_pass_where_as_many_errors_do_not():
    losses = np.linspace(0, 0.0625, 160)
    by_shares = pareto_testing.of_losses(losses, 0.05, DELTA, graded=True)
    assert by_shares.passed and losses.mean() < by_shares.limit <= 0.05
    by_errors = pareto_testing.of_errors(round(losses.sum()), 160, 0.05, DELTA)
    assert not by_errors.passed
    assert by_shares.text == f"{losses.mean():.3g} over 160" and by_errors.text == f"{by_errors.errors} of 160"


def test_the_limit_is_the_alpha_at_which_the_test_turns():
    losses = np.random.default_rng(4).beta(1, 9, 80)
    limit = graded_losses.risk_limit(losses, DELTA)
    assert graded_losses.p_value(losses, limit) == pytest.approx(DELTA, rel=1e-9)
    assert graded_losses.risk_limit(np.ones(10), DELTA) == 1.0
    fewest = graded_losses.fewest_images(0.1, DELTA)
    passes = lambda count: graded_losses.p_value(np.zeros(count), 0.1) <= DELTA
    assert passes(fewest) and not passes(fewest - 1)
    assert graded_losses.p_value(np.full(160, graded_losses.largest_equal_loss(160, 0.05, DELTA)), 0.05) <= DELTA


@pytest.mark.parametrize(
    ("losses", "words"),
    [([0.1, 1.2], "A loss of 1.2"), ([-0.1], "A loss of -0.1"), ([math.nan], "A loss of nan"), ([], "one number")],
)
def test_what_is_no_loss_is_refused(losses, words):
    with pytest.raises(UserError, match=words):
        graded_losses.p_value(np.array(losses), ALPHA)
    with pytest.raises(UserError, match="delta"):
        pareto_testing.of_losses(np.zeros(10), ALPHA, 1.0, graded=True)


def test_a_sequence_of_graded_losses_ends_at_its_first_failure():
    losses = [np.full(100, mean) for mean in (0.01, 0.3, 0.0)]
    tests = pareto_testing.in_sequence(
        (pareto_testing.of_losses(row, ALPHA, DELTA, graded=True) for row in losses), ALPHA
    )
    assert [test.passed for test in tests] == [True, False] and tests[0].limit == ALPHA
    assert "49 test images without a loss; 160 may lose 0.0351 each" in pareto_testing.images_needed(
        160, 0.05, DELTA, graded=True
    )
