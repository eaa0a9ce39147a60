"""Label maps over images, and their legend."""

import numpy as np

from jaxprune.report.pictures.label_map import VOID, legend, overlay, palette


def test_pixels_take_the_colour_of_their_class_and_void_stays():
    image, classes = np.full((2, 3, 3), 100, np.uint8), np.array([[0, 1, VOID], [1, 0, VOID]], np.uint8)
    colours = ((200, 0, 0), (0, 0, 200))
    picture = overlay(image, classes, colours, opacity=0.5)
    assert picture[0, 0].tolist() == [150, 50, 50] and picture[1, 0].tolist() == [50, 50, 150]
    np.testing.assert_array_equal(picture[:, 2], image[:, 2])


def test_an_image_takes_the_size_of_its_map():
    assert overlay(np.zeros((4, 4, 3), np.uint8), np.zeros((6, 8), np.uint8), palette(1)).shape == (6, 8, 3)


def test_neighbouring_classes_have_colours_that_differ():
    colours = np.array(palette(60), float)
    assert np.abs(np.diff(colours, axis=0)).sum(1).min() > 60


def test_a_legend_shows_every_colour_and_breaks_its_rows():
    colours = palette(12)
    picture = legend([f"class {k}" for k in range(12)], colours, width=300)
    present = {tuple(pixel) for pixel in picture.reshape(-1, 3).tolist()}
    assert set(colours) <= present and picture.shape[1] == 300 and picture.shape[0] > 48
