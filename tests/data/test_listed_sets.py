"""NABirds and NUS-WIDE, prepared from their own files; and data sets without their images that have no class."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxprune.data.prepare import prepare
from jaxprune.data.tfds_source import Tfds
from jaxprune.errors import UserError


def picture(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(path)


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def by_value(source):
    """{grey value: label} of a source."""
    examples = [source[index] for index in range(len(source))]
    return {int(example["image"][0, 0, 0]): example["label"].tolist() for example in examples}


def nabirds(root):
    write(root / "classes.txt", "0 Birds", "817 Ruddy Duck (Female)", "295 Common Loon", "1010 Oak Titmouse")
    files = {"a-1": ("0817/a1.png", 817, 1), "b-2": ("0295/b2.png", 295, 0), "c-3": ("1010/c3.png", 1010, 1)}
    for number, (path, _, _) in enumerate(files.values()):
        picture(root / "images" / path, 10 * number)
    write(root / "images.txt", *(f"{key} {path}" for key, (path, _, _) in files.items()))
    write(root / "image_class_labels.txt", *(f"{key} {label}" for key, (_, label, _) in files.items()))
    write(root / "train_test_split.txt", *(f"{key} {train}" for key, (_, _, train) in files.items()))


def test_nabirds_has_the_classes_of_its_pictures_in_the_order_of_their_numbers(tmp_path):
    nabirds(tmp_path / "in" / "nabirds")
    done = prepare(tmp_path / "in", tmp_path / "out", name="nabirds")
    assert done.class_names == ("295 Common Loon", "817 Ruddy Duck (Female)", "1010 Oak Titmouse")
    assert done.num_examples == {"train": 2, "test": 1}
    assert by_value(Tfds("nabirds", split="train", data_dir=tmp_path / "out")) == {0: 1, 20: 2}
    assert by_value(Tfds("nabirds", split="test", data_dir=tmp_path / "out")) == {10: 0}


def test_a_broken_picture_is_named_and_left_out_wherever_it_stands_in_the_list(tmp_path):
    nabirds(tmp_path / "in")
    (tmp_path / "in" / "images" / "0817" / "a1.png").write_bytes(b"no picture")  # the first of its split
    done = prepare(tmp_path / "in", tmp_path / "out", name="nabirds")
    assert list(done.broken) == [str(Path("images", "0817", "a1.png"))]
    assert done.num_examples == {"train": 1, "test": 1}


def test_lists_of_different_pictures_are_refused(tmp_path):
    nabirds(tmp_path / "in")
    write(tmp_path / "in" / "images.txt", "a-1 0817/a1.png")
    with pytest.raises(UserError, match="different pictures"):
        prepare(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize("path", ["../../secret.png", "/etc/secret.png"])
def test_lists_that_lead_out_of_the_data_set_are_refused(path, tmp_path):
    nabirds(tmp_path / "in")
    lines = (tmp_path / "in" / "images.txt").read_text().splitlines()
    write(tmp_path / "in" / "images.txt", f"a-1 {path}", *lines[1:])
    with pytest.raises(UserError, match="leads out of it"):
        prepare(tmp_path / "in", tmp_path / "out")


def test_nus_wide_by_the_table_of_the_papers_code(tmp_path):
    rows = [
        "images/0_0.png,\"['sky', 'clouds']\",train",
        "images/1_1.png,['birds'],val",
        "images/2_2.png,['sky'],train",
    ]
    write(tmp_path / "in" / "nus_wid_data.csv", "filepath,label,split_name", *rows)
    for number in range(3):
        picture(tmp_path / "in" / "images" / f"{number}_{number}.png", 10 * number)
    done = prepare(tmp_path / "in", tmp_path / "out", name="nus_wide")
    assert done.class_names == ("birds", "clouds", "sky")
    source = Tfds("nus_wide", split="train", data_dir=tmp_path / "out", label_key="labels")
    assert by_value(source) == {0: [0, 1, 1], 20: [0, 0, 1]}
    assert len(Tfds("nus_wide", split="test", data_dir=tmp_path / "out", label_key="labels")) == 1


def nus_wide(root):
    write(root / "ConceptsList" / "Concepts81.txt", "birds", "sky")
    write(root / "ImageList" / "TrainImagelist.txt", "a\\0001_1.png", "a\\0002_2.png", "a\\0003_3.png")
    write(root / "ImageList" / "TestImagelist.txt", "b\\0004_4.png")
    for name, train, test in (("birds", "100", "0"), ("sky", "101", "1")):
        write(root / "Groundtruth" / "TrainTestLabels" / f"Labels_{name}_Train.txt", *train)
        write(root / "Groundtruth" / "TrainTestLabels" / f"Labels_{name}_Test.txt", *test)
    for number, folder in ((1, "a"), (2, "a"), (4, "b")):  # Flickr has deleted the third
        picture(root / "Flickr" / folder / f"000{number}_{number}.png", 10 * number)


def test_nus_wide_by_its_own_lists_and_only_what_has_a_class(tmp_path):
    nus_wide(tmp_path / "in")
    prepare(tmp_path / "in", tmp_path / "out", name="nus_wide")
    options = {"split": "train", "data_dir": tmp_path / "out", "label_key": "labels"}
    assert by_value(Tfds("nus_wide", **options)) == {10: [1, 1], 20: [0, 0]}
    assert by_value(Tfds("nus_wide", **options, only_labelled=True)) == {10: [1, 1]}
