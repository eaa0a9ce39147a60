"""Masks of class numbers, and masks of a single object."""

import numpy as np
import pytest
from PIL import Image
from regions import LOWER_RIGHT, assert_regions, only, write_picture, write_text

from jaxprune.data.annotations import open_annotations
from jaxprune.data.annotations.scene_parse150_classes import SCENE_PARSE150_CLASSES
from jaxprune.errors import UserError


def test_masks_of_classes_and_of_one_object(tmp_path):
    write_picture(tmp_path / "images" / "a.jpg")
    mask = np.where(LOWER_RIGHT, 2, 0).astype(np.uint8)
    mask[0, 0] = 255
    (tmp_path / "masks").mkdir()
    Image.fromarray(mask).save(tmp_path / "masks" / "a.png")
    assert_regions(only(open_annotations("masks", path=str(tmp_path))), {"2": LOWER_RIGHT})
    write_text(tmp_path / "classes.txt", "2 cat\n")
    assert_regions(only(open_annotations("masks", path=str(tmp_path))), {"cat": LOWER_RIGHT})
    Image.fromarray(LOWER_RIGHT.astype(np.uint8) * 255).save(tmp_path / "masks" / "a.png")
    assert_regions(only(open_annotations("masks", path=str(tmp_path))), {"object": LOWER_RIGHT})
    Image.fromarray(np.zeros((2, 2), np.uint8)).save(tmp_path / "masks" / "a.png")
    with pytest.raises(UserError, match="must be of one size"):
        open_annotations("masks", path=str(tmp_path))[0]


def test_masks_of_the_scene_parsing_benchmark_have_its_names(tmp_path):
    assert len(set(SCENE_PARSE150_CLASSES)) == len(SCENE_PARSE150_CLASSES) == 150
    write_picture(tmp_path / "images" / "a.jpg")
    (tmp_path / "annotations").mkdir()
    for number, name in ((1, "wall"), (13, "person"), (67, "flower"), (90, "television"), (150, "flag")):
        Image.fromarray(np.where(LOWER_RIGHT, number, 0).astype(np.uint8)).save(tmp_path / "annotations" / "a.png")
        found = only(open_annotations("masks", path=str(tmp_path), classes="scene_parse150"))
        assert_regions(found, {name: LOWER_RIGHT})


def test_masks_of_several_channels(tmp_path):
    write_picture(tmp_path / "images" / "a.jpg")
    (tmp_path / "masks").mkdir()
    found = lambda **options: only(open_annotations("masks", path=str(tmp_path), **options))

    def save(*channels):
        planes = [np.where(LOWER_RIGHT, inside, outside) for inside, outside in channels]
        Image.fromarray(np.stack(planes, -1).astype(np.uint8)).save(tmp_path / "masks" / "a.png")

    save((3, 0), (255, 255))  # grey and alpha, which was taken for the class
    assert_regions(found(), {"3": LOWER_RIGHT})
    save((3, 0), (3, 0), (3, 0), (255, 255))
    assert_regions(found(), {"3": LOWER_RIGHT})
    save((0, 0), (200, 0), (0, 0))
    assert_regions(found(), {"object": LOWER_RIGHT})
    save((40, 0), (7, 0), (99, 0))
    assert_regions(found(kind="ade20k"), {str(4 * 256 + 7): LOWER_RIGHT})
    save((40, 10), (7, 20), (99, 30))
    with pytest.raises(UserError, match=r"has 2 colours instead of class numbers.* kind=ade20k"):
        found()
    with pytest.raises(UserError, match="ade20k"):
        found(kind="ade")
