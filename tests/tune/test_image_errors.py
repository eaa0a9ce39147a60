"""Which images count as errors."""

import numpy as np
import pytest

from jaxprune.errors import UserError
from jaxprune.tune.image_errors import ImagePredictions, accuracy_errors, agreement_errors

UNKNOWN = np.full(3, -1)
BANK = np.array([[1, 0], [0.9, 0.1], [0, 1]], np.float32)


def predictions(values, labels=UNKNOWN):
    values = np.asarray(values)
    return ImagePredictions(
        values if values.ndim == 1 else values.astype(np.float32), np.asarray(labels)[: len(values)]
    )


def test_a_classifier_agrees_where_it_predicts_the_same_class():
    dense, plan = predictions([1, 2, 3]), predictions([1, 0, 3])
    assert agreement_errors(dense, plan, dense, neighbours=5, in_bank=False).tolist() == [False, True, False]


def test_features_agree_where_they_retrieve_one_of_the_nearest():
    bank = predictions(BANK)
    dense, plan = predictions([[1, -0.1], [0.1, 1]]), predictions([[0.9, 0.1], [1, 0.1]])
    # The first is nearest to row 0 and then to row 1, which the plan retrieves; the second to row 2.
    assert agreement_errors(dense, plan, bank, neighbours=1, in_bank=False).tolist() == [True, True]
    assert agreement_errors(dense, plan, bank, neighbours=2, in_bank=False).tolist() == [False, False]
    assert agreement_errors(dense, dense, bank, neighbours=1, in_bank=False).tolist() == [False, False]


def test_no_image_of_the_bank_retrieves_itself():
    bank = predictions(BANK)
    moved = predictions(BANK[::-1].copy())
    assert not agreement_errors(bank, bank, bank, neighbours=1, in_bank=True).any()
    # Image 0 has image 1 next to it and now image 2; image 2 has image 1 and now image 0.
    assert agreement_errors(bank, moved, bank, neighbours=1, in_bank=True).tolist() == [True, False, True]
    assert agreement_errors(bank[:2], moved[:2], bank, neighbours=1, in_bank=True).tolist() == [True, False]


def test_accuracy_is_lost_where_dense_is_right_and_the_plan_is_wrong():
    labels = [0, 1, 2]
    dense, plan = predictions([0, 1, 0], labels), predictions([0, 0, 2], labels)
    errors = accuracy_errors(dense, plan, dense, neighbours=1, in_bank=False)
    assert errors.tolist() == [False, True, False]  # the third is gained, and does not count
    features, moved = predictions(BANK, [5, 5, 6]), predictions([[0, 1], [1, 0], [0, 1]], [5, 5, 6])
    assert accuracy_errors(features, moved, features, neighbours=1, in_bank=False).tolist() == [True, False, False]
    for count in (3, 2):
        own = accuracy_errors(features[:count], moved[:count], features, neighbours=1, in_bank=True)
        assert own.tolist() == [True, False, False][:count]


def test_accuracy_needs_classes():
    with pytest.raises(UserError, match="no label"):
        accuracy_errors(
            predictions([1, 2, 3]), predictions([1, 2, 3]), predictions([1, 2, 3]), neighbours=1, in_bank=False
        )
