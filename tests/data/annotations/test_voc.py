"""PASCAL VOC's boxes and masks."""

import numpy as np
from PIL import Image
from regions import LOWER_RIGHT, assert_regions, only, write_picture, write_text

from jaxprune.data.annotations import open_annotations


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
