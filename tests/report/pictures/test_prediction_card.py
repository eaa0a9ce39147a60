"""Prediction cards have the same size whether or not they contain the true class."""

import numpy as np
from example_picture import IMAGE

from jaxprune.report.pictures.layout import READABLE
from jaxprune.report.pictures.prediction_card import prediction_card


def test_prediction_cards_are_of_one_size():
    names = [f"class {i} with a long name that does not fit into the card" for i in range(10)]
    confidences = np.linspace(0, 0.2, 10)
    cards = [prediction_card(IMAGE, names, confidences, top=5, truth=truth) for truth in (0, 9)]
    assert cards[0].shape == cards[1].shape and cards[0].dtype == np.uint8
    assert (cards[0] != cards[1]).any()
    assert prediction_card(IMAGE, names[:2], confidences[:2]).shape[0] >= READABLE
