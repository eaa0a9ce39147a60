"""Rank correlations with their intervals."""

import numpy as np
import pytest
from scipy import stats
from support import golden

from jaxprune.measures import correlation, rank_correlation


def test_published_correlations():
    file = golden("token_reduction/metric_rank_correlation")
    found = (call(file["x"], file["y"], draws=200) for call in (rank_correlation.spearman, rank_correlation.kendall))
    for ours, theirs in zip(found, (file["spearman"], file["kendall_tau_b"]), strict=True):
        assert ours.value == pytest.approx(float(theirs), abs=1e-12) and ours.count == len(file["x"])
        assert ours.low < ours.value < ours.high
    for ours, exact in ((rank_correlation.spearman, stats.spearmanr), (rank_correlation.kendall, stats.kendalltau)):
        assert ours(file["x"], file["y"], draws=0).p_value == pytest.approx(exact(file["x"], file["y"]).pvalue)


def test_missing_pairs_are_left_out_and_nothing_is_made_of_too_few():
    x = np.array([1.0, 2.0, np.nan, 3.0, 4.0])
    found = rank_correlation.spearman(x, np.array([1.0, 3.0, 0.0, 2.0, np.nan]), draws=0)
    assert found.count == 3 and found.value == pytest.approx(0.5) and np.isnan(found.low)
    for y in (np.ones(5), np.array([1, np.nan, 1, np.nan, 2])):
        assert np.isnan(rank_correlation.kendall(x, y).value)


def test_intervals_narrow_with_the_number_of_pairs():
    rng = np.random.default_rng(0)
    widths = []
    for count in (20, 200):
        x = rng.normal(size=count)
        found = rank_correlation.spearman(x, x + rng.normal(size=count), draws=200)
        widths.append(found.high - found.low)
    assert widths[1] < widths[0] / 2


def test_draws_are_correlated_like_the_pairs():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 6, (2, 9, 12)).astype(float)  # with ties
    for of_rows, exact in (
        (correlation.spearman, stats.spearmanr),
        (correlation.kendall, stats.kendalltau),
        (correlation.pearson, stats.pearsonr),
    ):
        wanted = [exact(*pair).statistic for pair in zip(x, y, strict=True)]
        np.testing.assert_allclose(of_rows(x, y), wanted, atol=1e-12)
    for of_rows in (correlation.spearman, correlation.kendall, correlation.pearson):
        assert np.isnan(of_rows(x[:1], np.full((1, 12), 0.1))).all()
