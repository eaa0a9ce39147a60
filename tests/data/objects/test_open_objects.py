"""Sources of objects by name: splits, the classes of all of them, and what has none."""

import numpy as np
import pytest
from PIL import Image
from support import refuse_listing

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


@pytest.mark.parametrize("locked", ["labels", ""])
def test_a_folder_that_may_not_be_listed_is_named(tmp_path, locked, monkeypatch):
    root = yolo(tmp_path)
    refuse_listing(root / locked, monkeypatch)
    with pytest.raises(UserError, match=rf"{root / locked} cannot be read \(Permission denied\)"):
        open_objects("yolo", split="train", path=str(root))


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


@pytest.mark.parametrize(
    "names", ["names: [RBC, 'WBC']", "nc: 2\nnames:\n  0: RBC\n  1: WBC\n", "names:\n- RBC\n- WBC"]
)
def test_names_of_data_yaml(tmp_path, names):
    root = yolo(tmp_path)
    (root / "classes.txt").unlink()
    (root / "data.yaml").write_text(names)
    assert open_objects("yolo", split="train", path=str(root)).class_names == ("RBC", "WBC")
    for wrong, message in (
        ("nc: 2", "has no names"),
        ("names: {a: b}", "have 'a': 'b'"),
        ("names: [", "cannot be read"),
    ):
        (root / "data.yaml").write_text(wrong)
        with pytest.raises(UserError, match=message):
            open_objects("yolo", split="train", path=str(root))


def test_numbers_without_names_are_said_to_be_cocos(tmp_path, caplog):
    root = yolo(tmp_path)
    (root / "classes.txt").unlink()
    assert len(open_objects("yolo", split="train", path=str(root)).class_names) == 80
    assert "class numbers are taken for COCO's" in caplog.text


def test_a_split_that_is_no_part_is_refused(tmp_path):
    root = str(yolo(tmp_path))
    with pytest.raises(UserError, match="no split 'training': it is divided, and its parts are called train, test"):
        open_objects("yolo", split="training", path=root)
    with pytest.raises(UserError, match="held_out=5 is not a share"):
        open_objects("yolo", split="train", path=root, held_out=5)


def test_images_without_a_text_file_show_no_objects(tmp_path):
    root = yolo(tmp_path)
    (root / "labels" / "1.txt").unlink()
    train, held_out = (open_objects("yolo", split=split, path=str(root)) for split in ("train", "test"))
    counts = {source.path(i)[-5]: len(source.objects(i)) for source in (train, held_out) for i in range(len(source))}
    assert counts == {"0": 1, "1": 0, "2": 1, "3": 1, "4": 1}
    for split in ("train", "val"):
        yolo(tmp_path / "inside", 3, split)
    (tmp_path / "inside" / "labels" / "val" / "val2.txt").unlink()
    source = open_objects("yolo", split="val", path=str(tmp_path / "inside"))
    assert [len(source.objects(i)) for i in range(len(source))] == [1, 1, 0]
