"""Rows on cost and accuracy: thresholds are chosen on other images than those they are measured on."""

import numpy as np
import pytest

from jaxprune.errors import UserError
from jaxprune.evaluate.spending import Spent, halves, pictures_by_exit, points


def spent(right, sure=None, costs=(1.0, 3.0)):
    """Logits of two classes; `right` (m, n), confidence by `sure` (m, n)."""
    right = np.asarray(right, bool)
    sure = np.full(right.shape, 2.0) if sure is None else np.asarray(sure, float)
    labels = np.arange(right.shape[1]) % 2
    signs = np.where(right, 1, -1) * np.where(labels, 1, -1)[None]
    logits = np.stack([-signs * sure, signs * sure], axis=-1)
    each = np.broadcast_to(np.array(costs)[:, None], right.shape)
    return Spent(logits, each, labels, [np.zeros((2, 2, 3), np.uint8)] * right.shape[1])


def easy_half(count=40):
    """Half of the images of each of the two halves."""
    easy = np.zeros(count, bool)
    for half in halves(count):
        easy[half[::2]] = True
    return easy


def test_each_exit_and_budgets():
    # The first exit is sure of, and right about, the first half of each of the two halves of images.
    easy = easy_half()
    rows = points(spent([easy, np.ones(40, bool)], [np.where(easy, 3.0, 0.1), np.full(40, 3.0)]), budgets=1)
    first, last, budget = rows
    assert first.accuracy.value == 0.5 and last.accuracy.value == 1 and first.images == 20
    assert (first.cost, last.cost) == ((1, 1, 1), (3, 3, 3))
    assert budget.cost[0] == pytest.approx(2) and budget.accuracy.value == 1 and budget.shares == "50%, 50%"
    assert budget.cost[1:] == (1, 3)


def test_budgets_by_their_cost():
    easy = easy_half()
    exits = spent([easy, np.ones(40, bool)], [np.where(easy, 3.0, 0.1), np.full(40, 3.0)])
    *_, small, large = points(exits, [1.5, 2.0])
    assert (small.leaving, large.leaving) == ("for 1.5 GMAC", "for 2 GMAC")
    assert small.cost[0] <= 1.5 < large.cost[0] <= 2


def test_thresholds_do_not_see_the_images_that_they_are_measured_on():
    # On the images that choose thresholds the first exit is right, on the others wrong.
    fitted = np.isin(np.arange(40), halves(40)[0])
    *_, budget = points(spent([fitted, np.ones(40, bool)]), budgets=1)
    leaving_first = float(budget.shares.split("%")[0]) / 100
    assert budget.accuracy.value == pytest.approx(1 - leaving_first)


def test_both_halves_have_classes_that_take_turns():
    first, second = halves(200)
    assert sorted([*first, *second]) == list(range(200)) and len(first) == len(second) == 100
    for half in (first, second):
        assert np.bincount(half % 10).min() >= 5
    with pytest.raises(UserError, match="1 held-out images are too few"):
        points(spent([[True], [True]]))


def test_gates_have_one_row_with_the_costs_of_all_images():
    one = spent([[True, False, True, True]], costs=(1.0,))
    (row,) = points(one._replace(costs=np.array([[1.0, 2.0, 3.0, 4.0]])))
    assert row.leaving == "all at exit 1" and row.cost[0] == 2.5 and row.accuracy.value == 0.75 and row.images == 4


def test_pictures_say_from_which_exit_on_the_prediction_is_right():
    captions = [caption for _, caption in pictures_by_exit(spent([[1, 1, 0, 0], [1, 0, 1, 0]]))]
    wrong = "wrong at the last exit"
    assert captions == ["right from exit 1 on", "right from exit 2 on", wrong, wrong]
