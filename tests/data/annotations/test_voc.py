"""PASCAL VOC's boxes and masks."""

import numpy as np
import pytest
from PIL import Image
from regions import LOWER_RIGHT, assert_regions, only, write_picture, write_text

from jaxprune.data import decode
from jaxprune.data.annotations import open_annotations
from jaxprune.data.objects.voc import VocObjects
from jaxprune.errors import UserError


def test_boxes_and_masks(tmp_path):
    write_picture(tmp_path / "JPEGImages" / "a.jpg")
    corners = "<xmin>7</xmin><ymin>5</ymin><xmax>12</xmax><ymax>8</ymax>"
    write_text(
        tmp_path / "Annotations" / "a.xml",
        f"<annotation><object><name>cat</name><bndbox>{corners}</bndbox></object></annotation>",
    )
    assert_regions(only(open_annotations("voc", path=str(tmp_path))), {"cat": LOWER_RIGHT})
    (tmp_path / "SegmentationClass").mkdir()
    Image.fromarray(np.where(LOWER_RIGHT, 8, 0).astype(np.uint8)).save(tmp_path / "SegmentationClass" / "a.png")
    assert_regions(only(open_annotations("voc", path=str(tmp_path), kind="masks")), {"cat": LOWER_RIGHT})


@pytest.mark.parametrize("orientation", range(1, 10))
def test_a_photograph_and_its_regions_are_turned_alike(tmp_path, orientation):
    (tmp_path / "JPEGImages").mkdir()
    tags = Image.Exif()
    tags[0x0112] = orientation
    file = tmp_path / "JPEGImages" / "a.png"
    Image.fromarray(np.where(LOWER_RIGHT[..., None], np.uint8([9, 99, 199]), np.uint8(0))).save(file, exif=tags)
    corners = "<xmin>7</xmin><ymin>5</ymin><xmax>12</xmax><ymax>8</ymax>"
    write_text(tmp_path / "Annotations" / "a.xml", f"<a><object><bndbox>{corners}</bndbox></object></a>")
    example = open_annotations("voc", path=str(tmp_path))[0]
    np.testing.assert_array_equal(example.image, decode.read(file))
    np.testing.assert_array_equal(example.regions["object"], example.image[..., 2] > 0)
    assert VocObjects(tmp_path)[0]["boxes"].tolist() == [[6, 4, 12, 8]]


def test_an_object_without_a_box_is_refused(tmp_path):
    write_picture(tmp_path / "JPEGImages" / "a.jpg")
    write_text(tmp_path / "Annotations" / "a.xml", "<a><object><name>cat</name></object></a>")
    with pytest.raises(UserError, match=r"a\.xml cannot be read: an object has no bndbox"):
        open_annotations("voc", path=str(tmp_path))[0]
