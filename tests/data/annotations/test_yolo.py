"""YOLO's text files of boxes and polygons."""

import numpy as np
import pytest
from regions import LOWER_RIGHT, assert_regions, only, write_picture, write_text

from jaxprune.data.annotations import open_annotations
from jaxprune.data.objects.yolo import YoloObjects
from jaxprune.errors import UserError


def test_boxes_and_polygons(tmp_path):
    write_picture(tmp_path / "images" / "a.png")
    write_picture(tmp_path / "images" / "not_annotated.png")
    write_text(tmp_path / "boxes_yolo" / "a.txt", "0 0.75 0.75 0.5 0.5\n16 0.25 0.25 0.5 0.5\n")
    upper_left = np.flip(LOWER_RIGHT, (0, 1))
    assert_regions(only(open_annotations("yolo", path=str(tmp_path))), {"person": LOWER_RIGHT, "dog": upper_left})
    write_text(tmp_path / "polygons" / "a.txt", "51 0.5 0.5 0.95 0.5 0.95 0.95 0.5 0.95\n")
    found = open_annotations("yolo", path=str(tmp_path), annotations="polygons", classes="coco")
    assert_regions(only(found), {"bowl": LOWER_RIGHT})
    write_text(tmp_path / "classes.txt", "thing\n")
    with pytest.raises(UserError, match="class 16, which has no name"):
        open_annotations("yolo", path=str(tmp_path))[0]
    write_text(tmp_path / "boxes_yolo" / "a.txt", "0 0.1 0.2 0.3\n")
    with pytest.raises(UserError, match=r"Line 1 for .* has 3 numbers"):
        open_annotations("yolo", path=str(tmp_path))[0]


def test_a_class_is_a_whole_number(tmp_path):
    write_picture(tmp_path / "images" / "a.png")
    write_text(tmp_path / "classes.txt", "cat\ndog\n")
    write_text(tmp_path / "labels" / "a.txt", "0 .5 .5 .5 .5\n1.7 .5 .5 .5 .5\n")
    for source in (open_annotations("yolo", path=str(tmp_path)), YoloObjects(tmp_path)):
        with pytest.raises(UserError, match=r"a\.txt cannot be read: line 2 has the class 1\.7, which is not a whole"):
            source[0]


@pytest.mark.parametrize("word", ["nan", "inf"])
def test_a_polygon_is_finite(tmp_path, word):
    write_picture(tmp_path / "images" / "a.png")
    write_text(tmp_path / "classes.txt", "cat\n")
    write_text(tmp_path / "labels" / "a.txt", f"0 {word} 0 1 0 1 1\n")
    for source in (open_annotations("yolo", path=str(tmp_path)), YoloObjects(tmp_path)):
        with pytest.raises(UserError, match=r"a\.txt cannot be read: a polygon has coordinates that are not .*finite"):
            source[0]


def test_pictures_of_one_name_do_not_share_an_annotation(tmp_path):
    for folder in ("x", "y"):
        write_picture(tmp_path / "images" / folder / "a.png")
    write_text(tmp_path / "labels" / "a.txt", "0 0.75 0.75 0.5 0.5\n")
    with pytest.raises(UserError, match=r"x/a\.png and .*y/a\.png share one annotation file"):
        open_annotations("yolo", path=str(tmp_path), annotations="labels")
