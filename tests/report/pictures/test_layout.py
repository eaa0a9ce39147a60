"""Pictures are enlarged and arranged without changing their pixels."""

import numpy as np
from example_picture import IMAGE

from jaxprune.report.pictures.layout import tile, upscale


def test_tile_places_pictures_in_order():
    sheet = tile(np.stack([IMAGE, 255 - IMAGE, IMAGE // 2]), columns=2, pad=3, background=(1, 2, 3))
    assert sheet.shape == (2 * 16 + 3, 2 * 24 + 3, 3) and sheet.dtype == np.uint8
    np.testing.assert_array_equal(sheet[:16, :24], IMAGE)
    np.testing.assert_array_equal(sheet[:16, 27:], 255 - IMAGE)
    np.testing.assert_array_equal(sheet[19:, :24], IMAGE // 2)
    assert (sheet[19:, 27:] == (1, 2, 3)).all() and (sheet[16:19] == (1, 2, 3)).all()


def test_upscale_repeats_whole_pixels():
    big = upscale(IMAGE, 40)
    assert big.shape == (48, 72, 3)
    np.testing.assert_array_equal(big[::3, ::3], IMAGE)
