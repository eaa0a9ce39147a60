"""Folders and archives of class directories become TFDS data sets, without TensorFlow."""

import errno
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from pictures import break_files, fill, picture

from jaxprune.data.prepare import prepare
from jaxprune.data.tfds_source import Tfds
from jaxprune.errors import UserError

ROOT = Path(__file__).parents[2]


def pixels(source):
    """The pictures of a source, by label."""
    examples = [source[i] for i in range(len(source))]
    return sorted((int(e["label"]), e["image"].tobytes()) for e in examples)


def test_a_folder_with_splits(splits, tmp_path):
    done = prepare(splits, tmp_path / "out", name="animals")
    assert done.path == tmp_path / "out" / "animals" / "1.0.0"
    assert done.num_examples == {"test": 4, "train": 12} and done.broken == {}
    assert done.class_names == ("ant", "bee", "cow")
    assert len(Tfds("animals", split="test", data_dir=tmp_path / "out")) == 4
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["animals"]  # nothing temporary stays
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize("kind", ["tar", "gztar", "xztar", "zip"])
def test_an_archive(folder, tmp_path, kind):
    archive = shutil.make_archive(str(tmp_path / "My-Pets"), kind, root_dir=folder.parent, base_dir=folder.name)
    done = prepare(archive, tmp_path / "out")
    assert done.path.parent.name == "my_pets" and done.num_examples == {"train": 12}
    expected = sorted((c, np.asarray(picture(100 * c + i)).tobytes()) for c in range(3) for i in range(4))
    assert pixels(Tfds(str(done.path))) == expected


def test_bytes_of_rgb_files_stay_and_others_become_png(tmp_path):
    root = fill(tmp_path / "in", ("a",), 1, suffix="jpg")
    picture(5).convert("L").save(root / "a" / "grey.jpg")
    picture(6).save(root / "a" / "x.bmp")
    picture(7).save(root / "a" / "y.gif")
    done = prepare(root, tmp_path / "out")
    raw = tfds.builder_from_directory(done.path).as_data_source("train", decoders={"image": tfds.decode.SkipDecoding()})
    stored = [bytes(raw[i]["image"]) for i in range(4)]
    assert (root / "a" / "000.jpg").read_bytes() in stored
    assert sum(data.startswith(b"\x89PNG") for data in stored) == 3
    decoded = {image for _, image in pixels(Tfds(str(done.path)))}
    assert np.asarray(picture(6)).tobytes() in decoded and len(decoded) == 4


def test_broken_pictures_are_named_counted_and_left_out(splits, tmp_path, caplog):
    break_files(splits / "train" / "ant" / "001.jpg", splits / "test" / "cow" / "000.jpg")
    done = prepare(splits, tmp_path / "out")
    assert done.num_examples == {"test": 3, "train": 11}
    assert sorted(done.broken) == ["test/cow/000.jpg", "train/ant/001.jpg"]
    assert any("test/cow/000.jpg" in message for message in caplog.messages)


def test_a_set_that_is_there_is_not_overwritten_by_accident(folder, tmp_path):
    done = prepare(folder, tmp_path / "out", name="x")
    before = sorted(p.name for p in done.path.iterdir())
    shutil.rmtree(folder / "cow")
    with pytest.raises(UserError, match=r"exists already.*overwrite=True"):
        prepare(folder, tmp_path / "out", name="x")
    assert len(Tfds(str(done.path))) == 12
    assert prepare(folder, tmp_path / "out", name="x", overwrite=True).num_examples == {"train": 8}
    assert len(Tfds(str(done.path))) == 8 and sorted(p.name for p in done.path.iterdir()) == before


def test_a_failed_overwrite_leaves_the_old_set(folder, tmp_path):
    done = prepare(folder, tmp_path / "out", name="x")
    with pytest.raises(UserError, match="nothing usable"):
        prepare(tmp_path / "out", tmp_path / "out", name="x", overwrite=True)
    assert len(Tfds(str(done.path))) == 12


def test_an_overwrite_that_cannot_move_leaves_the_old_set(folder, tmp_path, monkeypatch):
    done, replace = prepare(folder, tmp_path / "out", name="x"), os.replace

    def refusing(source, target):
        if Path(target) == done.path and Path(source).name != "replaced":
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refusing)
    with pytest.raises(UserError, match=r"out cannot be written \(No space left"):
        prepare(folder, tmp_path / "out", name="x", overwrite=True)
    assert len(Tfds(str(done.path))) == 12


@pytest.mark.parametrize("python", ["with filters", "below 3.11.4"])
def test_paths_that_lead_out_of_the_archive_are_refused(python, tmp_path, monkeypatch):
    if python == "below 3.11.4":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    with tarfile.open(tmp_path / "evil.tar", "w") as file:
        entry = tarfile.TarInfo("../evil.jpg")
        entry.size = 1
        file.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(UserError, match="not safe to unpack"):
        prepare(tmp_path / "evil.tar", tmp_path / "deep" / "out")
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as file:
        file.writestr("../../evil.jpg", "x")
    with pytest.raises(UserError, match=r"nothing usable|no class directories"):
        prepare(tmp_path / "evil.zip", tmp_path / "deep" / "out")
    assert not list(tmp_path.rglob("evil.jpg"))


@pytest.mark.parametrize("kind", ["zip", "gztar"])
def test_an_archive_that_unpacks_to_far_more_than_pictures_do_is_refused(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxprune.data.prepare._FREE", 1000)
    (tmp_path / "in/train/a").mkdir(parents=True)
    (tmp_path / "in/train/a/0.png").write_bytes(bytes(10**6))
    archive = shutil.make_archive(str(tmp_path / "bomb"), kind, root_dir=tmp_path / "in")
    with pytest.raises(UserError, match=r"unpacks to more than 1,000,000 bytes, which is not plausible"):
        prepare(archive, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tar", b"no archive", "not an archive that can be read"),
        ("x.zip", b"PK\x03\x04", "not an archive that can be read"),
        ("x.tar.xz", b"\xfd7zXZ\x00 and nothing", "not an archive that can be read"),
    ],
)
def test_what_is_no_archive_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        prepare(tmp_path / name, tmp_path / "out")


@pytest.mark.parametrize("kind", ["tar", "gztar", "bztar", "xztar"])
def test_a_cut_or_damaged_archive_is_refused(folder, tmp_path, kind):
    archive = Path(shutil.make_archive(str(tmp_path / "in"), kind, root_dir=folder))
    assert prepare(archive, tmp_path / "whole").num_examples
    data = archive.read_bytes()
    with tarfile.open(archive) as file:
        middle = file.getmembers()[len(file.getnames()) // 2].offset
    cut = data[:middle] if kind == "tar" else data[: len(data) // 2]
    place = middle if kind == "tar" else len(data) - 20
    for wrong in (cut, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]):
        archive.write_bytes(wrong)
        with pytest.raises(UserError, match="is not an archive that can be read"):
            prepare(archive, tmp_path / "out")


def test_an_encrypted_archive_is_refused(folder, tmp_path):
    archive = Path(shutil.make_archive(str(tmp_path / "in"), "zip", root_dir=folder))
    data = bytearray(archive.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = data.index(mark)
        while start >= 0:
            data[start + place] |= 1  # the flag of an encrypted entry
            start = data.find(mark, start + 4)
    archive.write_bytes(data)
    with pytest.raises(UserError, match=r"is not an archive that can be read .*encrypted"):
        prepare(archive, tmp_path / "out")


def test_bad_arguments_are_refused(folder, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        prepare(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(UserError, match="'My Pets' cannot name"):
        prepare(folder, tmp_path / "out", name="My Pets")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty' holds nothing usable"):
        prepare(tmp_path / "empty", tmp_path / "out")


def test_a_split_with_only_broken_pictures_is_refused(folder, tmp_path):
    for path in folder.rglob("*.png"):
        path.write_text("x")
    with pytest.raises(UserError, match="None of the 12 images"):
        prepare(folder, tmp_path / "out")


def test_where_nothing_can_be_written_is_one_line(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    for output in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(UserError, match=rf"{re.escape(str(output))} cannot be written"):
            prepare(folder, output)

    def full(*args, **options):
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise RuntimeError("Failed to finalize writing of split") from error

    monkeypatch.setattr(tfds.core.GeneratorBasedBuilder, "download_and_prepare", full)
    with pytest.raises(UserError, match=r"out cannot be written \(No space left on device\)"):
        prepare(folder, tmp_path / "out")


@pytest.mark.slow
def test_the_command(folder, tmp_path):
    break_files(folder / "ant" / "000.png")
    command = [
        sys.executable,
        "-m",
        "jaxprune.tools.prepare",
        f"--input={folder}",
        f"--output={tmp_path / 'out'}",
        "--name=pets",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "left out: ant/000.png" in done.stdout
    assert "11 in train; 3 classes; 1 broken left out" in done.stdout
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 2 and "exists already" in again.stderr and "Traceback" not in again.stderr
