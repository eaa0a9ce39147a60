"""Sources of objects: COCO, YOLO and VOC, and files that are none."""

import json

import numpy as np
import pytest
from PIL import Image

from jaxprune.data.objects import base
from jaxprune.data.objects.coco import CocoObjects
from jaxprune.data.objects.scenes import SceneObjects, runs_of
from jaxprune.data.objects.voc import VocObjects
from jaxprune.data.objects.yolo import YoloObjects
from jaxprune.errors import UserError

SQUARE = [1, 1, 5, 1, 5, 4, 1, 4]


def picture(folder, name, size=(8, 6)):
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (9, 9, 9)).save(folder / name)


def content(**changes):
    crowd = np.zeros((6, 8), bool)
    crowd[2:4, 3:] = True
    objects = [
        {"id": 1, "image_id": 7, "category_id": 3, "bbox": [1, 1, 4, 3], "segmentation": [SQUARE], "iscrowd": 0},
        {"id": 2, "image_id": 7, "category_id": 1, "bbox": [3, 2, 5, 2], "segmentation": runs_of(crowd), "iscrowd": 1},
    ]
    images = [{"id": number, "file_name": f"{number}.png", "height": 6, "width": 8} for number in (7, 9)]
    classes = [{"id": 3, "name": "cat"}, {"id": 1, "name": "dog"}]
    return {"images": images, "categories": classes, "annotations": objects, **changes}


def coco(tmp_path, value, **options):
    for number in (7, 9):
        picture(tmp_path / "images", f"{number}.png")
    file = tmp_path / "instances.json"
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return CocoObjects(tmp_path / "images", file, **options)


def test_coco(tmp_path):
    source = coco(tmp_path, content())
    assert source.class_names == ("dog", "cat") and source.category_ids == [1, 3] and len(source) == 2
    example = source[0]
    assert example["image"].shape == (6, 8, 3) and example["boxes"].tolist() == [[1, 1, 5, 4], [3, 2, 8, 4]]
    assert example["classes"].tolist() == [1, 0] and example["crowd"].tolist() == [False, True]
    assert example["masks"][0][0].tolist() == SQUARE
    assert base.bitmap(example["masks"][1]).sum() == 10 == base.area(source.objects(0)[1])
    assert base.area(source.objects(0)[0]) == 12
    assert source[1]["boxes"].shape == (0, 4)
    assert len(coco(tmp_path, content(), with_objects=True)) == 1


def change(**fields):
    """The content with a changed first object."""
    value = content()
    value["annotations"][0] |= fields
    return value


HOSTILE = {
    "no json": ("{", "cannot be read as COCO"),
    "deep": ("[" * 200_000, "cannot be read as COCO"),
    "a list": ([], "holds no mapping"),
    "no images": (content(images=None), "no list 'images'"),
    "an image without a file": (content(images=[{"id": 7}]), "lacks id or file_name"),
    "an id of text": (
        content(categories=[{"id": "1", "name": "dog"}]),
        "id '1' of entry 0 of 'categories' is a text",
    ),
    "a path outside": (content(images=[{"id": 7, "file_name": "../x.png"}]), "not inside"),
    "twice": (content(images=content()["images"] * 2), "several images or categories of one id"),
    "nan": (change(bbox=[float("nan"), 1, 2, 2]), "not all finite"),
    "infinite": (change(bbox=[0, 0, 1e308, 1e308]), "not all finite"),
    "negative size": (change(bbox=[3, 1, -2, 2]), "ends before it begins"),
    "three numbers": (change(bbox=[3, 1, 2]), "three|3 numbers"),
    "text": (change(bbox="abcd"), "could not convert"),
    "two points": (change(segmentation=[[1, 1, 2, 2]]), "4 coordinates"),
    "odd": (change(segmentation=[[1, 1, 2, 2, 3, 3, 4]]), "7 coordinates"),
    "nan polygon": (change(segmentation=[[1, 1, 2, 2, float("nan"), 3]]), "not finite"),
    "nested polygon": (change(segmentation=[[[1, 1], [2, 2], [3, 3]]]), "not a flat list"),
    "short runs": (change(segmentation={"size": [6, 8], "counts": [3, 4]}), "add up to 7"),
    "other size": (change(segmentation={"size": [60, 80], "counts": [4800]}), "for 60×80 pixels"),
    "negative runs": (change(segmentation={"size": [6, 8], "counts": [50, -2]}), "whole numbers from 0"),
    "huge runs": (change(segmentation={"size": [10**9, 10**9], "counts": [10**18]}), "not a size of an image"),
    "compressed runs": (change(segmentation={"size": [6, 8], "counts": "~~~~~~~~~~~~~~"}), "run lengths"),
    "cut runs": (change(segmentation={"size": [6, 8], "counts": "o"}), "end too early"),
    "no image": (change(image_id=99), "no image 99"),
    "no category": (change(category_id=99), "no category 99"),
    "a long id": (change(id="x" * 9999), "instances.json: the id .*9,999 characters.* is a text"),
    "a long image id": (change(image_id="x" * 9999), "no image 'x*…' .9,999 characters"),
    "a long category id": (change(category_id="x" * 9999), "no category 'x*…' .9,999 characters"),
    "a long path outside": (
        content(images=[{"id": 7, "file_name": "../" + "x" * 9999}]),
        "10,002 characters.*not inside",
    ),
    "a long text": (change(bbox=["x" * 9999, 1, 2, 2]), "could not convert"),
    "no box": (change(bbox=None), "1 in .*instances.json cannot be read"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_coco_files_end_in_one_line(kind, tmp_path):
    value, text = HOSTILE[kind]
    with pytest.raises(UserError, match=text) as error:
        coco(tmp_path, value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


def test_compressed_runs_are_those_of_coco():
    mask = pytest.importorskip("pycocotools.mask")
    random = np.random.default_rng(0)
    for density in (0.0, 0.02, 0.5, 1.0):
        bitmap = random.random((37, 23)) < density
        encoded = mask.encode(np.asfortranarray(bitmap, np.uint8))
        runs = base.checked_runs({"size": list(encoded["size"]), "counts": encoded["counts"].decode()}, (37, 23))
        np.testing.assert_array_equal(base.bitmap(runs), bitmap)
        np.testing.assert_array_equal(base.bitmap(base.checked_runs(runs_of(bitmap), (37, 23))), bitmap)


def test_yolo(tmp_path):
    picture(tmp_path / "images", "a.png")
    (tmp_path / "labels").mkdir()
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    file = tmp_path / "labels/a.txt"
    file.write_text("1 0.5 0.5 0.5 0.5\n0 0 0 1 0 1 1\n")
    source = YoloObjects(tmp_path)
    example = source[0]
    assert source.class_names == ("cat", "dog") and example["boxes"].tolist() == [[2, 1.5, 6, 4.5], [0, 0, 8, 6]]
    assert example["classes"].tolist() == [1, 0] and example["masks"][1][0].tolist() == [0, 0, 8, 0, 8, 6]
    for line, text in (
        ("7 .5 .5 .5 .5", "class 7"),
        ("0 .5 .5", "2 coordinates"),
        ("0 nan .5 .5 .5", "not all finite"),
        ("0 .5 .5 -.5 .5", "ends before"),
        ("x", "could not convert"),
    ):
        file.write_text(line)
        with pytest.raises(UserError, match=text):
            source[0]


BOX = "<object><name>cat</name><bndbox><xmin>{}</xmin><ymin>1</ymin><xmax>4</xmax><ymax>3</ymax></bndbox></object>"
BOMB = '<!DOCTYPE a [<!ENTITY a "{}">{}]><a>&j;</a>'.format(
    "x" * 100, "".join(f'<!ENTITY {b} "{f"&{a};" * 100}">' for a, b in zip("abcdefghi", "bcdefghij", strict=True))
)


def test_voc(tmp_path):
    picture(tmp_path / "JPEGImages", "a.png")
    file = tmp_path / "Annotations/a.xml"
    file.parent.mkdir()
    file.write_text(f"<annotation>{BOX.format(2)}</annotation>")
    source = VocObjects(tmp_path)
    assert source.class_names == ("cat",) and source[0]["boxes"].tolist() == [[1, 0, 4, 3]]
    for text, message in (
        (f"<annotation>{BOX.format('nan')}</annotation>", "not all finite"),
        (f"<annotation>{BOX.format(9)}</annotation>", "ends before"),
        ("<annotation><object/></annotation>", "no bndbox"),
        ("<annotation>", "cannot be read"),
        (BOMB, "cannot be read"),
        (f"<annotation>{BOX.format(2).replace('cat', 'dog')}</annotation>", "class 'dog'"),
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            source[0]


def test_scenes_have_tight_boxes():
    source = SceneObjects(10, 32)
    for index in range(10):
        example = source[index]
        x0, y0, x1, y1 = example["boxes"][0].astype(int)
        mask = base.bitmap(example["masks"][0])
        assert mask[y0:y1, x0:x1].sum() == mask.sum() and mask[y0].any() and mask[:, x1 - 1].any()
        assert example["classes"][0] == index
