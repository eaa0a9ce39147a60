"""COCO's boxes and run lengths."""

import json

import attacks
import pytest
from attacks import annotations
from regions import HEIGHT, LOWER_RIGHT, WIDTH, assert_regions, only, write_picture, write_text

from jaxprune.data.annotations import open_annotations
from jaxprune.data.annotations.coco_classes import COCO_NUMBERS
from jaxprune.errors import UserError


def test_boxes_and_masks(tmp_path):
    write_picture(tmp_path / "train" / "a.jpg")
    runs = {"size": [HEIGHT, WIDTH], "counts": [6 * HEIGHT + 4, *[4] * 11]}
    entry = {"image_id": 7, "category_id": 17, "bbox": [6, 4, 6, 4], "segmentation": runs}
    content = {
        "images": [{"id": 7, "file_name": "a.jpg"}],
        "categories": [{"id": 17, "name": COCO_NUMBERS[17]}],
        "annotations": [entry],
    }
    write_text(tmp_path / "instances.json", json.dumps(content))
    where = {"path": str(tmp_path / "train"), "annotations": str(tmp_path / "instances.json")}
    for kind in ("boxes", "masks"):
        assert_regions(only(open_annotations("coco", kind=kind, **where)), {"cat": LOWER_RIGHT})
    for box, message in (([6, 4, -6, 4], "ends before it begins"), ([6, float("nan"), 6, 4], "not all finite")):
        write_text(tmp_path / "bad.json", json.dumps({**content, "annotations": [{**entry, "bbox": box}]}))
        with pytest.raises(UserError, match=rf"bad\.json for .*a\.jpg cannot be read: .*{message}"):
            only(open_annotations("coco", path=where["path"], annotations=str(tmp_path / "bad.json")))
    with pytest.raises(UserError, match="cannot be read as COCO's annotations"):
        open_annotations("coco", path=where["path"], annotations=str(tmp_path / "nothing.json"))


def test_a_picture_outside_of_the_directory_is_refused(tmp_path):
    write_picture(tmp_path / "a.jpg")
    (tmp_path / "train").mkdir()
    for name in ("../a.jpg", str(tmp_path / "a.jpg")):
        content = {"images": [{"id": 7, "file_name": name}], "categories": [], "annotations": []}
        write_text(tmp_path / "instances.json", json.dumps(content))
        with pytest.raises(UserError, match=r"instances\.json names the image '.*a\.jpg', which is not inside of"):
            open_annotations("coco", path=str(tmp_path / "train"), annotations=str(tmp_path / "instances.json"))


def test_a_picture_with_an_unprintable_name_that_is_not_there_is_one_line(tmp_path):
    (tmp_path / "train").mkdir()
    entry = {"image_id": 7, "category_id": 17, "bbox": [6, 4, 6, 4]}
    images, categories = [{"id": 7, "file_name": "a\n\x1b[2J.jpg"}], [{"id": 17, "name": "cat"}]
    content = {"images": images, "categories": categories, "annotations": [entry]}
    write_text(tmp_path / "instances.json", json.dumps(content))
    annotated = open_annotations("coco", path=str(tmp_path / "train"), annotations=str(tmp_path / "instances.json"))
    with pytest.raises(UserError) as error:
        only(annotated)
    assert str(error.value).isprintable() and "cannot be read" in str(error.value)


def test_damaged_annotations_end_in_a_line(tmp_path):
    outcome = attacks.run(annotations.coco(tmp_path, 400, 0))
    assert not outcome.raw and not outcome.unnoticed and outcome.refused > 150
    assert outcome.longest < 700 and outcome.seconds < 2


@pytest.mark.parametrize("content", ["[" * 10**5, '{"images": ' + "[" * 10**5, "{}", "[]", "null"])
def test_what_is_no_annotation_file_is_one_short_line(content, tmp_path):
    write_text(tmp_path / "bad.json", content)
    with pytest.raises(UserError, match="cannot be read as COCO's annotations") as error:
        open_annotations("coco", path=str(tmp_path), annotations=str(tmp_path / "bad.json"))
    assert len(str(error.value)) < 500
