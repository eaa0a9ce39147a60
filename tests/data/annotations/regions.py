"""A picture, one region in it, and helpers to write and compare them."""

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 8, 12
LOWER_RIGHT = np.zeros((HEIGHT, WIDTH), bool)
LOWER_RIGHT[4:, 6:] = True


def write_picture(path, size=(WIDTH, HEIGHT)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size[1], size[0], 3), 99, np.uint8)).save(path)


def write_text(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def only(source):
    """Returns the regions of the only example of a source."""
    assert len(source) == 1
    example = source[0]
    assert example.image.shape == (HEIGHT, WIDTH, 3) and example.image.dtype == np.uint8
    return example.regions


def assert_regions(found, expected):
    assert set(found) == set(expected)
    for name, pixels in expected.items():
        np.testing.assert_array_equal(found[name], pixels, err_msg=name)
