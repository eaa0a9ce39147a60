"""Rasterised boxes, polygons and run lengths."""

import numpy as np
import pytest
from regions import HEIGHT, LOWER_RIGHT, WIDTH

from jaxprune.data.annotations.shapes import box, polygon, segmentation
from jaxprune.errors import UserError


def test_pixels_of_boxes_polygons_and_runs():
    np.testing.assert_array_equal(box((3.9999999, 6.2, 7.1, 40), (HEIGHT, WIDTH)), LOWER_RIGHT)
    assert not box((-5, -5, -1, -1), (HEIGHT, WIDTH)).any()
    square = [6, 4, 11, 4, 11, 7, 6, 7]
    np.testing.assert_array_equal(polygon(square, (HEIGHT, WIDTH)), LOWER_RIGHT)
    np.testing.assert_array_equal(segmentation([square, [0, 0, 0, 0, 0, 0]], (HEIGHT, WIDTH))[0, 0], True)
    with pytest.raises(UserError, match="Compressed"):
        segmentation({"size": [2, 2], "counts": "abc"}, (2, 2))
