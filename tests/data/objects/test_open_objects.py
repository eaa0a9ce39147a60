"""Sources of objects by name: splits, the classes of all of them, and what has none."""

import numpy as np
import pytest
from PIL import Image

from jaxprune.data.objects.open_objects import open_objects
from jaxprune.data.objects.truth import Truth
from jaxprune.errors import UserError


def yolo(root, count=5, prefix=""):
    for folder in ("images", "labels"):
        (root / folder / prefix).mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.new("RGB", (20 + i, 30)).save(root / "images" / prefix / f"{prefix}{i}.png")
        (root / "labels" / prefix / f"{prefix}{i}.txt").write_text(f"{i % 2} 0.5 0.5 0.5 0.4\n")
    (root / "classes.txt").write_text("cat\ndog\n")
    return root


def test_a_directory_without_splits_is_divided(tmp_path):
    root = str(yolo(tmp_path))
    train, held_out = (open_objects("yolo", split=split, path=root, held_out=0.4) for split in ("train", "test"))
    assert (len(train), len(held_out)) == (3, 2)
    files = [source.path(i) for source in (train, held_out) for i in range(len(source))]
    assert len(set(files)) == 5
    again = open_objects("yolo", split="train", path=root, held_out=0.4)
    assert [again.path(i) for i in range(3)] == files[:3]
    example = held_out[1]
    assert int(example["index"]) == 1 and example["image"].shape[1] == 20 + int(held_out.path(1)[-5])
    np.testing.assert_allclose(example["boxes"][0, 3] - example["boxes"][0, 1], 12, atol=1e-4)


@pytest.mark.parametrize("outside", [True, False])
def test_splits_of_a_yolo_directory_lie_outside_or_inside(tmp_path, outside):
    for split, count in (("train", 3), ("val", 2)):
        yolo(tmp_path / split, count) if outside else yolo(tmp_path, count, split)
    classes = {"classes": str(tmp_path / "train/classes.txt")} if outside else {}
    for split, count in (("train", 3), ("val", 2)):
        source = open_objects("yolo", split=split, path=str(tmp_path), **classes)
        assert len(source) == count and source.class_names == ("cat", "dog")
    with pytest.raises(UserError, match="no split 'test': choose one of train, val"):
        open_objects("yolo", split="test", path=str(tmp_path))


def test_unknown_sources_and_options_are_named(tmp_path):
    with pytest.raises(UserError, match="Did you mean 'coco'"):
        open_objects("cocoo", split="train")
    with pytest.raises(UserError, match=r"has no option 'pth'\. Did you mean 'path'"):
        open_objects("voc", split="train", pth="x")
    with pytest.raises(UserError, match="does not exist"):
        open_objects("coco", split="train", path=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="has one image, which cannot be divided"):
        open_objects("yolo", split="train", path=str(yolo(tmp_path, 1)))


def test_images_that_were_not_read_take_their_objects_with_them(tmp_path):
    root = yolo(tmp_path)
    source = open_objects("yolo", split="train", path=str(root), held_out=0.4)
    truth = Truth.of(source)
    assert truth.image_ids == [1, 2, 3] and truth.category_ids == [1, 2]
    some = truth.of_images([0, 2])
    assert [entry["id"] for entry in some["images"]] == [1, 3]
    assert [entry["image_id"] for entry in some["annotations"]] == [1, 3]
    assert truth.of_images([0, 1, 2]) is truth.content
