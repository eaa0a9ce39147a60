"""Objects over images: boxes, masks and their labels."""

import numpy as np

from jaxprune.report.pictures.objects import draw_objects

COLOURS = ((255, 0, 0), (0, 0, 255))
IMAGE = np.full((40, 60, 3), 100, np.uint8)


def test_a_box_is_its_outline_and_the_inside_stays():
    picture = draw_objects(IMAGE, np.array([[10.0, 5, 30, 25]]), [1], COLOURS)
    assert picture[5, 10].tolist() == picture[24, 29].tolist() == [0, 0, 255]
    assert picture[15, 20].tolist() == picture[25, 30].tolist() == [100, 100, 100]
    assert IMAGE.max() == 100  # the image itself is not drawn on


def test_masks_are_tinted_and_boxes_beyond_the_image_are_cut():
    mask = np.zeros((40, 60), bool)
    mask[30:, 40:] = True
    picture = draw_objects(IMAGE, np.array([[38.0, 28, 90, 70]]), [0], COLOURS, masks=[mask], opacity=0.5)
    assert picture[35, 50].tolist() == [178, 50, 50] and picture[39, 59].tolist() == [255, 0, 0]
    assert picture[10, 10].tolist() == [100, 100, 100]


def test_labels_lie_above_a_box_or_inside_it_at_the_border():
    above = draw_objects(IMAGE, np.array([[5.0, 20, 50, 35]]), [0], COLOURS, labels=["87%"])
    assert above[8, 5].tolist() == [255, 0, 0]
    inside = draw_objects(IMAGE, np.array([[5.0, 2, 50, 35]]), [0], COLOURS, labels=["87%"])
    assert inside[1, 5].tolist() == [100, 100, 100] and inside[13, 6].tolist() == [255, 0, 0]


def test_nothing_found_is_the_image():
    np.testing.assert_array_equal(draw_objects(IMAGE, np.zeros((0, 4)), [], COLOURS), IMAGE)
