"""Marks are drawn on the selected patches or masks, and nowhere else."""

import numpy as np
import pytest
from example_picture import GRID, IMAGE, SELECTED, changed_patches, patches

from jaxprune.errors import UserError
from jaxprune.report.pictures.marks import mark_patches, mask_outline, mask_patches, outline_patches


@pytest.mark.parametrize(
    "draw",
    [
        lambda: mask_patches(IMAGE, SELECTED, GRID),
        lambda: outline_patches(IMAGE, SELECTED, GRID),
        lambda: mark_patches(IMAGE, SELECTED, GRID, "hatch"),
        lambda: mark_patches(IMAGE, SELECTED, GRID, "cross"),
        lambda: mark_patches(IMAGE, SELECTED, GRID, "tint"),
    ],
)
def test_only_selected_patches_change(draw):
    before = IMAGE.copy()
    drawn = draw()
    assert drawn.shape == IMAGE.shape and drawn.dtype == np.uint8
    np.testing.assert_array_equal(changed_patches(drawn), SELECTED)
    np.testing.assert_array_equal(IMAGE, before)


def test_masked_patches_are_one_colour():
    drawn = patches(mask_patches(IMAGE, SELECTED, GRID, (9, 8, 7)))
    assert (drawn[SELECTED] == (9, 8, 7)).all()


def test_outline_leaves_the_inside():
    drawn = patches(outline_patches(IMAGE, SELECTED, GRID, (255, 0, 0), thickness=2))
    np.testing.assert_array_equal(drawn[1, 2:-2, 2:-2], patches(IMAGE)[1, 2:-2, 2:-2])
    frame = np.ones((8, 8), bool)
    frame[2:-2, 2:-2] = False
    assert (drawn[1][frame] == (255, 0, 0)).all()


def test_a_grid_that_does_not_divide_the_picture():
    image = np.zeros((10, 10, 3), np.uint8)
    drawn = mask_patches(image, np.arange(9) == 4, (3, 3), (255, 255, 255))
    assert {tuple(np.ptp(np.argwhere(drawn[..., 0]), axis=0) + 1)} <= {(3, 3), (4, 4), (3, 4), (4, 3)}


def test_a_wrong_number_of_patches_is_refused():
    with pytest.raises(UserError, match="2 × 3 has 6 patches; got 5"):
        mask_patches(IMAGE, SELECTED[:5], GRID)


def test_mask_outline_is_inside_the_mask():
    mask = np.zeros((16, 24), bool)
    mask[4:12, 6:18] = True
    changed = (mask_outline(np.zeros((16, 24, 3), np.uint8), mask, thickness=1) != 0).any(axis=-1)
    assert changed.sum() == 2 * 12 + 2 * 6 and not changed[~mask].any()


@pytest.mark.parametrize("level", [0, 60, 128, 200, 255])
@pytest.mark.parametrize("draw", [mask_patches, lambda *args: mask_patches(*args, opacity=0.7)])
def test_hidden_patches_differ_from_dark_grey_and_bright_images(draw, level):
    image = np.full((64, 96, 3), level, np.uint8)
    hidden, visible = patches(draw(image, SELECTED, GRID).astype(int))[[1, 0]]
    assert (visible == level).all() and (abs(hidden - level).max(axis=-1) >= 40).mean() > 0.08
