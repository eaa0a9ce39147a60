"""Annotated images in every layout that is read, made here on the spot."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from jaxprune.data import tfds_source
from jaxprune.data.annotations import COCO_NUMBERS, box, open_annotations, polygon, segmentation
from jaxprune.errors import UserError

HEIGHT, WIDTH = 8, 12
LOWER_RIGHT = np.zeros((HEIGHT, WIDTH), bool)
LOWER_RIGHT[4:, 6:] = True


def picture(path, size=(WIDTH, HEIGHT)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size[1], size[0], 3), 99, np.uint8)).save(path)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def only(source):
    assert len(source) == 1
    example = source[0]
    assert example.image.shape == (HEIGHT, WIDTH, 3) and example.image.dtype == np.uint8
    return example.regions


def assert_regions(found, expected):
    assert set(found) == set(expected)
    for name, pixels in expected.items():
        np.testing.assert_array_equal(found[name], pixels, err_msg=name)


def test_yolo_boxes_and_polygons(tmp_path):
    picture(tmp_path / "images" / "a.png")
    picture(tmp_path / "images" / "not_annotated.png")
    write(tmp_path / "boxes_yolo" / "a.txt", "0 0.75 0.75 0.5 0.5\n16 0.25 0.25 0.5 0.5\n")
    upper_left = np.flip(LOWER_RIGHT, (0, 1))
    assert_regions(only(open_annotations("yolo", path=str(tmp_path))), {"person": LOWER_RIGHT, "dog": upper_left})
    write(tmp_path / "polygons" / "a.txt", "51 0.5 0.5 0.95 0.5 0.95 0.95 0.5 0.95\n")
    found = open_annotations("yolo", path=str(tmp_path), annotations="polygons", classes="coco")
    assert_regions(only(found), {"bowl": LOWER_RIGHT})
    write(tmp_path / "classes.txt", "thing\n")
    with pytest.raises(UserError, match="class 16, which has no name"):
        open_annotations("yolo", path=str(tmp_path))[0]
    write(tmp_path / "boxes_yolo" / "a.txt", "0 0.1 0.2 0.3\n")
    with pytest.raises(UserError, match=r"Line 1 for .* has 3 numbers"):
        open_annotations("yolo", path=str(tmp_path))[0]


def test_masks_of_classes_and_of_one_object(tmp_path):
    picture(tmp_path / "images" / "a.jpg")
    mask = np.where(LOWER_RIGHT, 2, 0).astype(np.uint8)
    mask[0, 0] = 255
    (tmp_path / "masks").mkdir()
    Image.fromarray(mask).save(tmp_path / "masks" / "a.png")
    assert_regions(only(open_annotations("masks", path=str(tmp_path))), {"2": LOWER_RIGHT})
    write(tmp_path / "classes.txt", "2 cat\n")
    assert_regions(only(open_annotations("masks", path=str(tmp_path))), {"cat": LOWER_RIGHT})
    Image.fromarray(LOWER_RIGHT.astype(np.uint8) * 255).save(tmp_path / "masks" / "a.png")
    assert_regions(only(open_annotations("masks", path=str(tmp_path))), {"object": LOWER_RIGHT})
    Image.fromarray(np.zeros((2, 2), np.uint8)).save(tmp_path / "masks" / "a.png")
    with pytest.raises(UserError, match="must be of one size"):
        open_annotations("masks", path=str(tmp_path))[0]


def test_voc(tmp_path):
    picture(tmp_path / "JPEGImages" / "a.jpg")
    corners = "<xmin>7</xmin><ymin>5</ymin><xmax>12</xmax><ymax>8</ymax>"
    write(
        tmp_path / "Annotations" / "a.xml",
        f"<annotation><object><name>cat</name><bndbox>{corners}</bndbox></object></annotation>",
    )
    assert_regions(only(open_annotations("voc", path=str(tmp_path))), {"cat": LOWER_RIGHT})
    (tmp_path / "SegmentationClass").mkdir()
    Image.fromarray(np.where(LOWER_RIGHT, 8, 0).astype(np.uint8)).save(tmp_path / "SegmentationClass" / "a.png")
    assert_regions(only(open_annotations("voc", path=str(tmp_path), kind="masks")), {"cat": LOWER_RIGHT})


def test_coco(tmp_path):
    picture(tmp_path / "train" / "a.jpg")
    runs = {"size": [HEIGHT, WIDTH], "counts": [6 * HEIGHT + 4, *[4] * 11]}
    entry = {"image_id": 7, "category_id": 17, "bbox": [6, 4, 6, 4], "segmentation": runs}
    content = {
        "images": [{"id": 7, "file_name": "a.jpg"}],
        "categories": [{"id": 17, "name": COCO_NUMBERS[17]}],
        "annotations": [entry],
    }
    write(tmp_path / "instances.json", json.dumps(content))
    where = {"path": str(tmp_path / "train"), "annotations": str(tmp_path / "instances.json")}
    for kind in ("boxes", "masks"):
        assert_regions(only(open_annotations("coco", kind=kind, **where)), {"cat": LOWER_RIGHT})
    with pytest.raises(UserError, match="cannot be read as COCO's annotations"):
        open_annotations("coco", path=where["path"], annotations=str(tmp_path / "nothing.json"))


class Prepared:
    """What TFDS knows of a prepared data set, as far as it is asked."""

    def __init__(self, **features):
        self.info = SimpleNamespace(features=features)


def test_tfds(monkeypatch):
    image = np.full((HEIGHT, WIDTH, 3), 99, np.uint8)
    label = SimpleNamespace(names=["cat", "dog"])
    with_boxes = Prepared(image=None, objects=SimpleNamespace(feature={"label": label}))
    box_record = {"image": image, "objects": {"bbox": np.array([[0.5, 0.5, 1, 1]]), "label": np.array([1])}}
    mask_record = {"image": image, "annotation": np.where(LOWER_RIGHT, 4, 0).astype(np.uint8)[..., None]}
    for builder, record, name in (
        (with_boxes, box_record, "dog"),
        (Prepared(image=None, annotation=None), mask_record, "4"),
    ):
        monkeypatch.setattr(tfds_source, "_builder", lambda name, where, builder=builder: builder)
        monkeypatch.setattr(tfds_source, "_open", lambda builder, split, record=record: [record])
        assert_regions(only(open_annotations("tfds", name="some/set")), {name: LOWER_RIGHT})
    monkeypatch.setattr(tfds_source, "_builder", lambda name, where: Prepared(image=None, label=None))
    with pytest.raises(UserError, match="neither boxes"):
        open_annotations("tfds", name="cifar10")


def test_scenes_have_one_object():
    source = open_annotations("scenes", num_images=3, image_size=32)
    image, regions = source[1]
    assert len(source) == 3 and image.shape == (32, 32, 3)
    assert list(regions) == ["ring"] and regions["ring"].any() and not regions["ring"].all()


def test_pixels_of_boxes_polygons_and_runs():
    np.testing.assert_array_equal(box((3.9999999, 6.2, 7.1, 40), (HEIGHT, WIDTH)), LOWER_RIGHT)
    assert not box((-5, -5, -1, -1), (HEIGHT, WIDTH)).any()
    square = [6, 4, 11, 4, 11, 7, 6, 7]
    np.testing.assert_array_equal(polygon(square, (HEIGHT, WIDTH)), LOWER_RIGHT)
    np.testing.assert_array_equal(segmentation([square, [0, 0, 0, 0, 0, 0]], (HEIGHT, WIDTH))[0, 0], True)
    with pytest.raises(UserError, match="Compressed"):
        segmentation({"size": [2, 2], "counts": "abc"}, (2, 2))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("cocco", {}, "Did you mean 'coco'"),
        ("yolo", {}, "need path="),
        ("yolo", {"path": "nowhere"}, "does not exist"),
        ("voc", {"path": ".", "kind": "polygons"}, "Unknown kind of VOC annotation"),
        ("scenes", {"image_sise": 3}, "Did you mean 'image_size'"),
    ],
)
def test_what_makes_no_sense_is_refused(source, options, message):
    with pytest.raises(UserError, match=message):
        open_annotations(source, **options)
