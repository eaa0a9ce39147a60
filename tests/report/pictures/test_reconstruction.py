"""Visible patches of a reconstruction are those of the original."""

import numpy as np
import pytest
from example_picture import GRID, IMAGE, SELECTED

from jaxprune.report.pictures.base import GREY
from jaxprune.report.pictures.marks import mask_patches
from jaxprune.report.pictures.reconstruction import reconstruction_rows


@pytest.mark.parametrize("plain", [True, False])
def test_reconstruction_rows_paste_visible_patches(plain):
    originals = np.stack([IMAGE, 255 - IMAGE])
    masked = np.stack([SELECTED, ~SELECTED])
    sheet = reconstruction_rows(originals, masked, None if plain else masked, originals * 0, GRID, pad=4)
    factor = 12  # 16 pixels become 192
    height, width = 16 * factor, 24 * factor
    assert sheet.shape[1] == (3 if plain else 4) * (width + 4) - 4 and sheet.dtype == np.uint8
    second = sheet[-height:][::factor, ::1]
    column = lambda index: second[:, index * (width + 4) : index * (width + 4) + width][:, ::factor]
    np.testing.assert_array_equal(column(0), originals[1])
    np.testing.assert_array_equal(column(1), mask_patches(originals[1], masked[1], GRID, GREY))
    np.testing.assert_array_equal(column(2), mask_patches(originals[1], masked[1], GRID, (0, 0, 0)))
