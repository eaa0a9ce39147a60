"""Intervals against known ones; those that reports print are held against SciPy's in `evaluate/test_intervals.py`."""

import numpy as np
import pytest
from scipy import stats

from jaxprune.measures.intervals import bootstrap_interval, normal_interval, student_interval, wilson_interval


def test_student_interval():
    mean, half = student_interval([1.0, 2.0, 3.0])
    assert mean == 2.0 and half == pytest.approx(4.30265 / 3**0.5, rel=1e-5)
    assert np.isnan(student_interval([1.0])[1])


def test_wilson_interval():
    low, high = wilson_interval(9, 10)
    assert (low, high) == (pytest.approx(0.59585, abs=1e-4), pytest.approx(0.98212, abs=1e-4))
    assert wilson_interval(0, 10)[0] == pytest.approx(0, abs=1e-12)
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_normal_interval():
    values = np.random.default_rng(0).normal(3, 2, 400)
    expected = stats.norm.interval(0.95, values.mean(), stats.sem(values))
    assert normal_interval(values) == pytest.approx(expected, abs=1e-4)
    assert np.isnan(normal_interval(values[:1])).all()


def test_bootstrap_interval_is_scipys():
    values = np.random.default_rng(0).exponential(size=50)
    low, high = bootstrap_interval(50, lambda rows: np.median(values[rows], axis=1), draws=4000)
    settings = {"method": "percentile", "n_resamples": 4000, "rng": np.random.default_rng(1)}
    expected = stats.bootstrap((values,), np.median, **settings).confidence_interval
    assert (low, high) == pytest.approx(tuple(expected), abs=0.05)
    finite = lambda rows: np.where(rows[:, 0] % 2, np.nan, values[rows].mean(1))
    assert np.isfinite(bootstrap_interval(50, finite)).all()
    assert np.isnan(bootstrap_interval(50, lambda rows: np.full(len(rows), np.nan))).all()
    assert np.isnan(bootstrap_interval(50, finite, draws=0)).all()
