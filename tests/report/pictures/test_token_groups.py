"""Dropped patches are grey, and merged ones have a common border and colour."""

import numpy as np
import pytest
from example_picture import GRID, IMAGE, SELECTED, changed_patches, patches

from jaxprune.report.pictures.token_groups import token_groups


@pytest.mark.parametrize(
    "draw",
    [
        lambda: token_groups(IMAGE, np.array([0, -1, 2, 3, 4, -1]), GRID),
        lambda: token_groups(IMAGE, np.array([0, 9, 2, 3, 4, 9]), GRID),
        lambda: token_groups(IMAGE, np.array([0, 9, 2, 3, 4, 9]), GRID, average=True),
    ],
)
def test_only_dropped_and_merged_patches_change(draw):
    before = IMAGE.copy()
    drawn = draw()
    assert drawn.shape == IMAGE.shape and drawn.dtype == np.uint8
    np.testing.assert_array_equal(changed_patches(drawn), SELECTED)
    np.testing.assert_array_equal(IMAGE, before)


def test_groups_share_a_border_and_an_average():
    assign = np.array([5, 5, 2, -1, 7, 7])
    bordered = patches(token_groups(IMAGE, assign, GRID, thickness=1))
    first, second = bordered[0, 0, 0], bordered[4, 7, 7]
    assert (bordered[0, :, 0] == first).all() and (bordered[1, :, 7] == first).all() and (first != second).any()
    # No line where two patches of one group touch.
    np.testing.assert_array_equal(bordered[0, 1:-1, 7], patches(IMAGE)[0, 1:-1, 7])
    averaged = patches(token_groups(IMAGE, assign, GRID, average=True, thickness=1))
    mean = patches(IMAGE)[:2].mean(axis=(0, 1, 2))
    np.testing.assert_allclose(averaged[0, 3, 3], mean, atol=0.51)
    np.testing.assert_array_equal(averaged[0, 3, 3], averaged[1, 4, 4])
    assert np.ptp(averaged[3].astype(int), axis=-1).max() <= 4  # without colour
