"""Errors under corruption: by kind, and relative to a reference."""

import pytest

from jaxprune.data.corruptions import NAMES, SEVERITIES
from jaxprune.evaluate.collectors.agreement import Scores
from jaxprune.evaluate.collectors.robustness import (
    ALEXNET,
    CorruptionRow,
    Robustness,
    by_corruption,
    mean_corruption_error,
    table,
)
from jaxprune.measures.intervals import Interval


def found(accuracy):
    scores = lambda value: Scores(Interval(value, 0.0, 1.0), 1.0)
    corrupted = {"dense": {(name, s): scores(accuracy(name, s)) for name in NAMES for s in SEVERITIES}}
    return Robustness({"dense": scores(0.9)}, corrupted, 100)


def test_alexnet_knows_every_corruption():
    assert set(ALEXNET) == set(NAMES)


def test_mce_is_the_mean_of_ratios_to_alexnet():
    assert mean_corruption_error({name: error / 2 for name, error in ALEXNET.items()}) == pytest.approx(50)
    (row,) = table(found(lambda name, severity: 1 - ALEXNET[name]), imagenet=True)
    assert row.mce == pytest.approx(100)
    assert row.corrupted == pytest.approx(1 - sum(ALEXNET.values()) / 15)
    (row,) = table(found(lambda name, severity: 1 - ALEXNET[name]), imagenet=False)
    assert row.mce is None
    some = found(lambda name, severity: 1 - ALEXNET[name])
    some.corrupted["dense"] = {key: scores for key, scores in some.corrupted["dense"].items() if key[0] != "fog"}
    (row,) = table(some, imagenet=True)
    assert row.mce is None and row.corrupted < 1


def test_errors_are_means_over_severities():
    measured = found(lambda name, severity: severity / 10)
    assert measured.errors("dense") == pytest.approx(dict.fromkeys(NAMES, 0.7))
    (row,) = table(measured, imagenet=False)
    assert row.by_kind["noise"] == row.by_kind["blur"] == pytest.approx(0.3)
    assert by_corruption(measured)[4] == CorruptionRow("gaussian_noise", 5, {"dense": 0.5})
