"""Film strips: every tube where it is, kept ones bright."""

import numpy as np
import pytest

from jaxprune.report.pictures import film_strip as strips
from jaxprune.report.pictures.heatmap import heatmap

GRID = (3, 2, 4)


@pytest.fixture
def clip():
    """Six frames of 16 × 32 pixels; the brightness is that of the frame."""
    levels = (100 + 10 * np.arange(6)).astype(np.uint8)
    return np.broadcast_to(levels[:, None, None, None], (6, 16, 32, 3)).copy()


def test_a_strip_has_the_first_frame_of_each_layer(clip):
    frames = np.split(strips.joined(clip, 3), 3, axis=1)
    assert [int(frame[0, 0, 0]) for frame in frames] == [100, 120, 140]
    assert frames[0].shape == (128, 256, 3)


def test_kept_tubes_are_bright_and_dropped_ones_dark(clip):
    kept = np.zeros(24, bool)
    kept[[0, 13, 23]] = True  # (0, 0, 0), (1, 1, 1), (2, 1, 3)
    frames = np.split(strips.film_strip(clip, kept, GRID, pad=0), 3, axis=1)
    cells = np.stack(frames)[..., 0].reshape(3, 2, 64, 4, 64).mean((2, 4))
    bright = np.argwhere(cells > 60).tolist()
    assert bright == [[0, 0, 0], [1, 1, 1], [2, 1, 3]]
    assert cells[1, 1, 1] == 120 and cells[0, 1, 0] == 20


def test_a_clip_without_dropped_tubes_is_as_it_was(clip):
    np.testing.assert_array_equal(strips.film_strip(clip, np.ones(24, bool), GRID), strips.film_strip(clip, None, GRID))


def test_values_are_unrolled_to_where_their_tubes_are_drawn(clip):
    scores = np.arange(24.0)
    unrolled = strips.unrolled(scores, GRID).reshape(strips.strip_grid(GRID))
    assert unrolled[1].tolist() == [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23]
    drawn = strips.drawn_strip(clip, lambda strip, cells: heatmap(strip, unrolled.reshape(cells), 1.0), GRID, pad=0)
    lightness = drawn.mean(-1).reshape(2, 64, 12, 64).mean((1, 3))
    assert np.argsort(lightness, axis=None).tolist() == np.argsort(unrolled, axis=None).tolist()


def test_merged_tubes_have_a_border(clip):
    assign = np.arange(24)
    assign[1] = 0
    drawn = strips.grouped_strip(clip, assign, GRID, pad=0)
    changed = (drawn != strips.film_strip(clip, None, GRID, pad=0)).any(-1)
    rows, columns = np.nonzero(changed)
    assert rows.max() < 64 and columns.max() < 128 and changed[0, 0] and not changed[30, 30]


def test_large_frames_are_reduced_and_stills_show_four():
    clip = np.zeros((8, 512, 512, 3), np.uint8)
    clip[6:] = 200
    assert strips.joined(clip, 4).shape == (128, 512, 3)
    sheet = strips.still(clip)
    assert sheet.shape == (258, 258, 3) and sheet[200, 200, 0] == 200 and sheet[50, 50, 0] == 0
    assert strips.still(clip[0]) is clip[0] or np.shares_memory(strips.still(clip[0]), clip)
