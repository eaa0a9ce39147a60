"""Visible patches of a reconstruction are those of the original."""

import numpy as np
import pytest
from example_picture import GRID, IMAGE, SELECTED

from jaxprune.evaluate.collectors.reconstruction import one_per_class
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


def test_mean_colours_stand_beside_the_reconstruction():
    originals, masked = IMAGE[None], SELECTED[None]
    sheet = reconstruction_rows(originals, masked, None, originals * 0, GRID, pad=4, mean_colours=True)
    factor, width = 12, 24 * 12
    assert sheet.shape[1] == 4 * (width + 4) - 4
    column = sheet[-16 * factor :][::factor, 2 * (width + 4) : 2 * (width + 4) + width][:, ::factor]
    height, wide = IMAGE.shape[0] // GRID[0], IMAGE.shape[1] // GRID[1]
    for index, (row, place) in enumerate(np.ndindex(*GRID)):
        part = (slice(row * height, (row + 1) * height), slice(place * wide, (place + 1) * wide))
        expected = np.rint(IMAGE[part].mean((0, 1))) if SELECTED[index] else IMAGE[part]
        np.testing.assert_array_equal(column[part], np.broadcast_to(expected, column[part].shape))


def test_pictures_are_of_different_classes():
    batch = lambda *rows: {
        "image": np.array([[index] for index, _ in rows]),
        "label": np.array([label for _, label in rows]),
        "index": np.array([index for index, _ in rows]),
    }
    batches = [batch((0, 0), (1, 0), (2, 1)), batch((3, 1), (4, 2), (4, 2))]
    assert one_per_class(batches, 4).ravel().tolist() == [0, 2, 4, 1]
    assert one_per_class([batch((0, -1), (1, -1), (2, -1))], 2).ravel().tolist() == [0, 1]
