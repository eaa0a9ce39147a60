"""Image folders: classes, formats, broken files, and messages that say what was looked for."""

import io

import numpy as np
import pytest
from pictures import break_files, fill, picture
from PIL import Image

from jaxprune.data import images
from jaxprune.data.broken import Unreadable, read_or_next
from jaxprune.data.folder import ImageFolder, open_split
from jaxprune.data.source import Source
from jaxprune.errors import UserError


def encoded(image, **options):
    buffer = io.BytesIO()
    image.save(buffer, **options)
    return buffer.getvalue()


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
    with pytest.raises(UserError, match=r"holds nothing usable: looked for directories.*jpg.*png"):
        ImageFolder(tmp_path)
    picture(1).save(tmp_path / "loose.png")
    with pytest.raises(UserError, match=r"no class directories.*labels=False"):
        ImageFolder(tmp_path)


def test_a_broken_file_is_named_counted_and_passed_over(folder, caplog):
    break_files(folder / "ant" / "003.png", folder / "bee" / "000.png")
    source = ImageFolder(folder)
    with pytest.raises(Unreadable):
        source[3]
    for _ in range(2):
        assert read_or_next(source, 3)["index"] == 5  # 4 is broken too
    assert set(source.broken) == {str(folder / "ant" / "003.png"), str(folder / "bee" / "000.png")}
    assert "no image" in source.broken[str(folder / "bee" / "000.png")]
    assert sum("000.png" in message for message in caplog.messages) == 1


def test_the_last_example_is_replaced_by_the_first(folder):
    break_files(folder / "cow" / "003.png")
    assert read_or_next(ImageFolder(folder), 11)["index"] == 0


def test_all_broken_is_an_error(tmp_path):
    root = fill(tmp_path / "x", ("a",), 2)
    break_files(root / "a" / "000.png", root / "a" / "001.png")
    with pytest.raises(UserError, match="None of the 2 images"):
        read_or_next(ImageFolder(root), 0)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA", "I;16", "RGB"])
def test_every_kind_of_picture_becomes_rgb(mode):
    grey = np.tile(np.arange(0, 256, 8, dtype=np.uint8), (32, 1))
    if mode == "I;16":
        image = Image.fromarray(grey.astype(np.uint16) << 8)
    else:
        image = Image.fromarray(grey).convert("RGB").convert(mode, palette=Image.Palette.ADAPTIVE)
    decoded = images.decode(encoded(image, format="TIFF" if mode == "CMYK" else "PNG"))
    assert decoded.shape == (32, 32, 3) and decoded.dtype == np.uint8
    if mode != "1":
        assert np.abs(decoded.astype(int) - grey[..., None]).max() <= 4


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "WEBP", "GIF", "PPM", "TIFF"])
def test_every_format_is_read(form):
    smooth = Image.fromarray(np.tile(np.arange(0, 240, 10, dtype=np.uint8)[:, None, None], (1, 30, 3)))
    decoded = images.decode(encoded(smooth, format=form))
    assert np.abs(decoded.astype(int) - np.asarray(smooth)).max() < 12


def test_rotation_is_applied_only_when_asked():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(picture(3, (20, 10)), format="JPEG", exif=exif)
    assert images.decode(data).shape == (10, 20, 3)
    assert images.decode(data, upright=True).shape == (20, 10, 3)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP"])
def test_a_file_cut_off_is_broken(form):
    data = encoded(picture(3, (64, 64)), format=form)
    with pytest.raises(images.Broken):
        images.decode(data[: len(data) // 2])
    with pytest.raises(images.Broken, match="empty file"):
        images.decode(b"")


def test_opencv_and_pillow_read_the_same(monkeypatch):
    pytest.importorskip("cv2")
    data = encoded(picture(5, (40, 30)), format="JPEG", quality=80)
    fast = images.decode(data)
    monkeypatch.setattr(images, "cv2", None)
    assert np.abs(fast.astype(int) - images.decode(data)).max() <= 4
