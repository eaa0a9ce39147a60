"""Pareto fronts for every combination of directions."""

import numpy as np
import pytest

from jaxprune.report import plots


@pytest.mark.parametrize(
    ("better", "expected"),
    [(("min", "max"), [1, 0, 3]), (("max", "max"), [3]), (("min", "min"), [1]), (("max", "min"), [1, 2, 3])],
)
def test_pareto_front(better, expected):
    x, y = np.array([2.0, 1.0, 2.5, 4.0]), np.array([3.0, 1.0, 2.0, 5.0])
    assert plots.pareto_front(x, y, better).tolist() == expected


def test_pareto_front_lists_coinciding_points_once():
    assert plots.pareto_front(np.array([1.0, 1.0]), np.array([2.0, 2.0])).tolist() == [0]
