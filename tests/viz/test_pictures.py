"""Pictures mark the patches they are told to mark, and no other pixel."""

import numpy as np
import pytest

from jaxprune.errors import UserError
from jaxprune.viz import pictures

GRID = (2, 3)
IMAGE = np.random.default_rng(0).integers(0, 256, (16, 24, 3)).astype(np.uint8)


def patches(image: np.ndarray, grid: tuple[int, int] = GRID) -> np.ndarray:
    """(H, W, 3) to (p, h, w, 3)."""
    height, width = image.shape[0] // grid[0], image.shape[1] // grid[1]
    return image.reshape(grid[0], height, grid[1], width, 3).swapaxes(1, 2).reshape(-1, height, width, 3)


def test_to_uint8():
    mean, std = np.array([0.5, 0.4, 0.3]), np.array([0.2, 0.25, 0.3])
    batch = IMAGE[None]
    normalised = (batch / 255 - mean) / std
    np.testing.assert_array_equal(pictures.to_uint8(normalised, mean, std), batch)
    np.testing.assert_array_equal(pictures.to_uint8(batch), batch)
    np.testing.assert_array_equal(pictures.to_uint8(np.array([-1.0, 0.5, 2.0, np.nan])), [0, 128, 255, 0])
    np.testing.assert_array_equal(pictures.to_uint8(np.array([True, False])), [255, 0])


def test_tile_places_pictures_in_order():
    sheet = pictures.tile(np.stack([IMAGE, 255 - IMAGE, IMAGE // 2]), columns=2, pad=3, background=(1, 2, 3))
    assert sheet.shape == (2 * 16 + 3, 2 * 24 + 3, 3) and sheet.dtype == np.uint8
    np.testing.assert_array_equal(sheet[:16, :24], IMAGE)
    np.testing.assert_array_equal(sheet[:16, 27:], 255 - IMAGE)
    np.testing.assert_array_equal(sheet[19:, :24], IMAGE // 2)
    assert (sheet[19:, 27:] == (1, 2, 3)).all() and (sheet[16:19] == (1, 2, 3)).all()


def test_upscale_repeats_whole_pixels():
    big = pictures.upscale(IMAGE, 40)
    assert big.shape == (48, 72, 3)
    np.testing.assert_array_equal(big[::3, ::3], IMAGE)


SELECTED = np.array([0, 1, 0, 0, 0, 1], bool)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: pictures.mask_patches(IMAGE, SELECTED, GRID),
        lambda: pictures.outline_patches(IMAGE, SELECTED, GRID),
        lambda: pictures.mark_patches(IMAGE, SELECTED, GRID, "hatch"),
        lambda: pictures.mark_patches(IMAGE, SELECTED, GRID, "cross"),
        lambda: pictures.mark_patches(IMAGE, SELECTED, GRID, "tint"),
        lambda: pictures.token_groups(IMAGE, np.array([0, -1, 2, 3, 4, -1]), GRID),
        lambda: pictures.token_groups(IMAGE, np.array([0, 9, 2, 3, 4, 9]), GRID),
        lambda: pictures.token_groups(IMAGE, np.array([0, 9, 2, 3, 4, 9]), GRID, average=True),
    ],
)
def test_only_selected_patches_change(draw):
    before = IMAGE.copy()
    drawn = draw()
    assert drawn.shape == IMAGE.shape and drawn.dtype == np.uint8
    changed = (patches(drawn) != patches(IMAGE)).any(axis=(1, 2, 3))
    np.testing.assert_array_equal(changed, SELECTED)
    np.testing.assert_array_equal(IMAGE, before)


def test_masked_patches_are_one_colour():
    drawn = patches(pictures.mask_patches(IMAGE, SELECTED, GRID, (9, 8, 7)))
    assert (drawn[SELECTED] == (9, 8, 7)).all()


def test_outline_leaves_the_inside():
    drawn = patches(pictures.outline_patches(IMAGE, SELECTED, GRID, (255, 0, 0), thickness=2))
    np.testing.assert_array_equal(drawn[1, 2:-2, 2:-2], patches(IMAGE)[1, 2:-2, 2:-2])
    frame = np.ones((8, 8), bool)
    frame[2:-2, 2:-2] = False
    assert (drawn[1][frame] == (255, 0, 0)).all()


def test_a_grid_that_does_not_divide_the_picture():
    image = np.zeros((10, 10, 3), np.uint8)
    drawn = pictures.mask_patches(image, np.arange(9) == 4, (3, 3), (255, 255, 255))
    assert {tuple(np.ptp(np.argwhere(drawn[..., 0]), axis=0) + 1)} <= {(3, 3), (4, 4), (3, 4), (4, 3)}


def test_a_wrong_number_of_patches_is_refused():
    with pytest.raises(UserError, match="2 × 3 has 6 patches; got 5"):
        pictures.mask_patches(IMAGE, SELECTED[:5], GRID)


def test_grid_overlay_draws_between_patches():
    drawn = pictures.grid_overlay(np.zeros((16, 24, 3), np.uint8), GRID, opacity=1.0)[..., 0]
    assert drawn[8].all() and drawn[:, 8].all() and drawn[:, 16].all()
    assert drawn.astype(bool).sum() == 24 + 2 * 16 - 2


def test_mask_outline_is_inside_the_mask():
    mask = np.zeros((16, 24), bool)
    mask[4:12, 6:18] = True
    changed = (pictures.mask_outline(np.zeros((16, 24, 3), np.uint8), mask, thickness=1) != 0).any(axis=-1)
    assert changed.sum() == 2 * 12 + 2 * 6 and not changed[~mask].any()


def test_heatmap_orders_by_lightness():
    scores = np.arange(6.0).reshape(GRID)
    drawn = patches(pictures.heatmap(np.zeros_like(IMAGE), scores, opacity=1.0)).astype(float)
    assert (np.ptp(drawn, axis=(1, 2)) == 0).all()
    lightness = drawn[:, 0, 0] @ np.array([0.21, 0.72, 0.07])
    assert (np.diff(lightness) > 0).all()
    assert (np.ptp(pictures.heatmap(np.zeros_like(IMAGE), np.ones(GRID)), axis=(0, 1)) == 0).all()


def test_groups_share_a_border_and_an_average():
    assign = np.array([5, 5, 2, -1, 7, 7])
    bordered = patches(pictures.token_groups(IMAGE, assign, GRID, thickness=1))
    first, second = bordered[0, 0, 0], bordered[4, 7, 7]
    assert (bordered[0, :, 0] == first).all() and (bordered[1, :, 7] == first).all() and (first != second).any()
    # No line where two patches of one group touch.
    np.testing.assert_array_equal(bordered[0, 1:-1, 7], patches(IMAGE)[0, 1:-1, 7])
    averaged = patches(pictures.token_groups(IMAGE, assign, GRID, average=True, thickness=1))
    mean = patches(IMAGE)[:2].mean(axis=(0, 1, 2))
    np.testing.assert_allclose(averaged[0, 3, 3], mean, atol=0.51)
    np.testing.assert_array_equal(averaged[0, 3, 3], averaged[1, 4, 4])
    assert averaged[3].max() <= 0.22 * 255 + 1


@pytest.mark.parametrize("plain", [True, False])
def test_reconstruction_rows_paste_visible_patches(plain):
    originals = np.stack([IMAGE, 255 - IMAGE])
    masked = np.stack([SELECTED, ~SELECTED])
    sheet = pictures.reconstruction_rows(originals, masked, None if plain else masked, originals * 0, GRID, pad=4)
    factor = 12  # 16 pixels become 192
    height, width = 16 * factor, 24 * factor
    assert sheet.shape[1] == (3 if plain else 4) * (width + 4) - 4 and sheet.dtype == np.uint8
    second = sheet[-height:][::factor, ::1]
    column = lambda index: second[:, index * (width + 4) : index * (width + 4) + width][:, ::factor]
    np.testing.assert_array_equal(column(0), originals[1])
    np.testing.assert_array_equal(column(1), pictures.mask_patches(originals[1], masked[1], GRID))
    np.testing.assert_array_equal(column(2), pictures.mask_patches(originals[1], masked[1], GRID, (0, 0, 0)))


def test_prediction_cards_are_of_one_size():
    names = [f"class {i} with a long name that does not fit into the card" for i in range(10)]
    confidences = np.linspace(0, 0.2, 10)
    cards = [pictures.prediction_card(IMAGE, names, confidences, top=5, truth=truth) for truth in (0, 9)]
    assert cards[0].shape == cards[1].shape and cards[0].dtype == np.uint8
    assert (cards[0] != cards[1]).any()
    assert pictures.prediction_card(IMAGE, names[:2], confidences[:2]).shape[0] >= pictures.READABLE


def test_label_adds_a_strip():
    labelled = pictures.label(IMAGE, "a text much wider than the picture")
    assert labelled.shape[0] > IMAGE.shape[0] and labelled.shape[1] == IMAGE.shape[1]
    np.testing.assert_array_equal(labelled[-16:], IMAGE)
