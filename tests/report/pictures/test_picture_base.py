"""Images of any type are converted to uint8."""

import numpy as np
from example_picture import IMAGE

from jaxprune.report.pictures.base import to_uint8


def test_to_uint8():
    mean, std = np.array([0.5, 0.4, 0.3]), np.array([0.2, 0.25, 0.3])
    batch = IMAGE[None]
    normalised = (batch / 255 - mean) / std
    np.testing.assert_array_equal(to_uint8(normalised, mean, std), batch)
    np.testing.assert_array_equal(to_uint8(batch), batch)
    np.testing.assert_array_equal(to_uint8(np.array([-1.0, 0.5, 2.0, np.nan])), [0, 128, 255, 0])
    np.testing.assert_array_equal(to_uint8(np.array([True, False])), [255, 0])
