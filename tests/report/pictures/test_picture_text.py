"""Labels are added above a picture."""

import numpy as np
from example_picture import IMAGE

from jaxprune.report.pictures.text import label


def test_label_adds_a_strip():
    labelled = label(IMAGE, "a text much wider than the picture")
    assert labelled.shape[0] > IMAGE.shape[0] and labelled.shape[1] == IMAGE.shape[1]
    np.testing.assert_array_equal(labelled[-16:], IMAGE)
