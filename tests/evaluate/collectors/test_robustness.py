"""Errors under corruption: by kind, and relative to a reference."""

import pytest

from jaxprune.data.corruptions import NAMES, SEVERITIES
from jaxprune.evaluate.collectors.robustness import ALEXNET, Robustness, by_corruption, mean_corruption_error, table


def found(accuracy):
    clean = {"dense": {"accuracy": 0.9, "low": 0.8, "high": 0.95, "agreement": 1.0}}
    corrupted = {"dense": {(name, s): {"accuracy": accuracy(name, s)} for name in NAMES for s in SEVERITIES}}
    return Robustness(clean, corrupted, 100)


def test_alexnet_knows_every_corruption():
    assert set(ALEXNET) == set(NAMES)


def test_mce_is_the_mean_of_ratios_to_alexnet():
    assert mean_corruption_error({name: error / 2 for name, error in ALEXNET.items()}) == pytest.approx(50)
    (row,) = table(found(lambda name, severity: 1 - ALEXNET[name]), imagenet=True)
    assert row["mCE"] == pytest.approx(100)
    assert row["corrupted"] == pytest.approx(1 - sum(ALEXNET.values()) / 15)
    (row,) = table(found(lambda name, severity: 1 - ALEXNET[name]), imagenet=False)
    assert "mCE" not in row


def test_errors_are_means_over_severities():
    measured = found(lambda name, severity: severity / 10)
    assert measured.errors("dense") == pytest.approx(dict.fromkeys(NAMES, 0.7))
    (row,) = table(measured, imagenet=False)
    assert row["noise"] == row["blur"] == pytest.approx(0.3)
    assert by_corruption(measured)[4] == {"corruption": "gaussian_noise", "severity": 5, "dense": 0.5}
