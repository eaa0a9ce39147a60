"""Image folders: classes, splits, and errors that name what was expected."""

import os
from pathlib import Path

import numpy as np
import pytest
from pictures import fill, picture
from PIL import Image

from jaxprune.data.folder import ImageFolder, open_split
from jaxprune.data.prepare import prepare
from jaxprune.data.source import Source
from jaxprune.data.source_factory import create_source, describe
from jaxprune.errors import UserError


def test_directories_are_classes(folder):
    source = ImageFolder(folder)
    assert isinstance(source, Source)
    assert len(source) == 12 and source.class_names == ("ant", "bee", "cow")
    example = source[5]
    assert example["label"] == 1 and example["label"].dtype == np.int32 and example["index"] == 5
    np.testing.assert_array_equal(example["image"], np.asarray(picture(101)))
    with pytest.raises(IndexError):
        source[12]


def test_what_lies_around_is_passed_over(folder):
    (folder / ".cache").mkdir()
    (folder / "notes.txt").write_text("x")
    (folder / "ant" / "._000.png").write_text("x")
    (folder / "ant" / "deeper").mkdir()
    picture(7).save(folder / "ant" / "deeper" / "x.PNG")
    source = ImageFolder(folder)
    assert source.class_names == ("ant", "bee", "cow") and len(source) == 13


def test_pictures_are_found_by_every_extension_of_their_formats_and_others_are_named(folder, caplog):
    data = (folder / "ant" / "000.png").read_bytes()
    for suffix in ("jfif", "jpe", "pgm", "PNM", "heic", "AVIF"):
        (folder / "ant" / f"more.{suffix}").write_bytes(data)
    assert len(ImageFolder(folder)) == 12 + 4
    assert "in formats that are not read are left out (1 .avif, 1 .heic): save as JPEG" in caplog.text


def test_without_labels_any_heap_will_do(folder):
    picture(9).save(folder / "loose.bmp")
    source = ImageFolder(folder, labels=False)
    assert len(source) == 13 and source.class_names == () and source.num_classes == 0
    assert {int(source[i]["label"]) for i in range(13)} == {-1}


def test_splits_share_their_labels(splits):
    train, test = open_split(splits, "train"), open_split(splits, "test")
    assert train.class_names == test.class_names == ("ant", "bee", "cow")
    assert [int(test[i]["label"]) for i in range(4)] == [0, 0, 2, 2]
    with pytest.raises(UserError, match=r"no split 'tset'.*test, train.*Did you mean 'test'"):
        open_split(splits, "tset")


def test_a_folder_without_splits_is_its_own_training_split(folder):
    assert len(open_split(folder, "train")) == 12
    with pytest.raises(UserError, match="no split 'test': it holds no split directories"):
        open_split(folder, "test")


def test_nothing_usable_is_an_error_that_says_so(tmp_path):
    with pytest.raises(UserError, match=r"nowhere' does not exist"):
        ImageFolder(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"holds nothing usable: looked for class directories.*jpg.*png"):
        ImageFolder(tmp_path)
    picture(1).save(tmp_path / "loose.png")
    with pytest.raises(UserError, match=r"no class directories.*labels=False"):
        ImageFolder(tmp_path)


def turned_jpeg(path, orientation=6):
    """Writes a photograph that a viewer turns by its tag; returns it as it is stored."""
    stored = picture(3, (40, 30))
    tags = stored.getexif()
    tags[0x0112] = orientation
    path.parent.mkdir(parents=True)
    stored.save(path, exif=tags, quality=95)
    return np.asarray(Image.open(path))


def test_a_directory_that_cannot_be_read_is_named(folder, monkeypatch):
    scandir = os.scandir

    def refusing(path="."):
        if Path(path).name == "cow":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(UserError, match=r"The directory .*cow cannot be read: Permission denied"):
        ImageFolder(folder)


def test_photographs_are_turned_as_their_tags_say_or_left(tmp_path):
    stored = turned_jpeg(tmp_path / "in" / "ant" / "a.jpg")
    prepare(tmp_path / "in", tmp_path / "out", name="turned")
    for name, where in (("folder", {"path": tmp_path / "in"}), ("tfds", {"data_dir": tmp_path / "out"})):
        read = lambda name=name, where=where, **exif: create_source(name, **where, **exif)[0]["image"]
        np.testing.assert_array_equal(read(exif=False), stored)
        np.testing.assert_array_equal(read(), np.rot90(stored, -1))


def held_out_files(root, seed=0, share=0.25, **options):
    settings = {"path": str(root), "held_out": share, "held_out_seed": seed, "in_memory": False, **options}
    train, test = (create_source("folder", split=split, **settings) for split in ("train", "test"))
    files = [{Path(part.path(i)).relative_to(root).as_posix() for i in range(len(part))} for part in (train, test)]
    return train, test, *files


def test_a_folder_without_splits_holds_out_a_share_of_each_class(folder, caplog):
    with caplog.at_level("INFO"):
        train, test, trained, held = held_out_files(folder)
    assert "3 of its 12 pictures are held out, 25 % of each class, by seed 0" in caplog.text
    assert isinstance(train, Source) and len(trained) == 9 and not trained & held
    assert trained | held == {path.relative_to(folder).as_posix() for path in folder.rglob("*.png")}
    assert sorted(file.partition("/")[0] for file in held) == ["ant", "bee", "cow"]
    examples = [test[number] for number in range(3)]
    assert [int(e["label"]) for e in examples] == [int(e["index"]) for e in examples] == [0, 1, 2]
    np.testing.assert_array_equal(examples[0]["image"], np.asarray(Image.open(test.path(0))))
    assert "(without 25 % of each class, held out by seed 0): 9 images, 3 classes" in describe(train)
    again = create_source("folder", path=str(folder), split="val", held_out=0.25, in_memory=False)
    assert again.path(0) == test.path(0)


def test_what_is_held_out_depends_on_the_seed_and_on_the_class_alone(tmp_path):
    root = fill(tmp_path / "root", ("bee", "cow"), 20)
    _, _, _, held = held_out_files(root)
    assert held_out_files(root)[3] == held and held_out_files(root, seed=1)[3] != held
    fill(root, ("ant",), 7)
    fill(root, ("single",), 1)
    train, _, trained, more = held_out_files(root)
    assert {file for file in more if file[:3] in ("bee", "cow")} == held
    assert "single/000.png" in trained and train.num_classes == 4


def test_splits_that_are_there_are_kept_and_a_heap_is_one_class(splits, folder, tmp_path):
    settings = {"path": str(splits), "in_memory": False}
    for split in ("train", "test"):
        assert len(create_source("folder", split=split, held_out=0.5, **settings)) == len(open_split(splits, split))
    train, test, *_ = held_out_files(folder, labels=False)
    assert (len(train), len(test)) == (9, 3) and int(train[0]["label"]) == -1
    with pytest.raises(UserError, match="no class with two pictures"):
        held_out_files(fill(tmp_path / "few", ("a", "b"), 1))
