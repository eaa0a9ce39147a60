"""Files that somebody made to do harm, or that a disk did: small answers, quickly, and nothing else."""

import io
import os
import struct
import time
import tracemalloc
import zlib

import numpy as np
import pytest
from pictures import fill, picture
from PIL import EpsImagePlugin, Image

from jaxprune.data import crop_resize, decode
from jaxprune.data.annotations import open_annotations
from jaxprune.data.broken_examples import Unreadable
from jaxprune.data.folder import ImageFolder, image_files, open_split
from jaxprune.data.prepare import prepare
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing

pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
EVALUATION = Preprocessing((224, 224))


def grey_png(width, height):
    """The bytes of a black PNG, one bit a pixel, compressed: a few hundred of them for any size."""
    rows = zlib.compressobj(9)
    row = bytes(1 + -(-width // 8))
    data = b"".join([*(rows.compress(row * 64) for _ in range(height // 64)), rows.compress(row * (height % 64))])
    data += rows.flush()
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)), (b"IDAT", data), (b"IEND", b"")]
    packed = [struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def whole_resized_then_cut(image, shape, crop_pct, resample):
    """`center_crop` by its definition."""
    new = crop_resize.resized_sides(image.shape[:2], shape, crop_pct)
    # The width first, as Pillow before version 13.
    narrow = Image.fromarray(image).resize((new[1], image.shape[0]), resample)
    image = np.asarray(narrow.resize(new[::-1], resample))
    top, left = round((new[0] - shape[0]) / 2), round((new[1] - shape[1]) / 2)
    return image[top : top + shape[0], left : left + shape[1]]


@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 1.0])
def test_the_crop_of_ordinary_images_is_the_middle_of_the_whole_resized(crop_pct):
    rng = np.random.default_rng(0)
    for height, width in [*rng.integers(1, 160, (40, 2)).tolist(), [8, 64], [64, 8], [1, 8], [500, 375]]:
        image = np.asarray(picture(height, (width, height)))
        for shape in ((32, 32), (48, 20), (96, 128)):
            if 1 / 8 <= height * shape[1] / (width * shape[0]) <= 8:
                found = crop_resize.center_crop(image, shape, crop_pct, Image.Resampling.BICUBIC)
                expected = whole_resized_then_cut(image, shape, crop_pct, Image.Resampling.BICUBIC)
                np.testing.assert_array_equal(found, expected, str((height, width, shape)))


@pytest.mark.parametrize("size", [(9, 100), (100, 9), (1, 70), (300, 20), (2, 90), (700, 31)])
@pytest.mark.parametrize("crop_pct", [0.875, 1.0])
def test_the_crop_of_long_images_differs_by_rounding_only(size, crop_pct):
    # Not up to black and white: where a filter overshoots, it matters which side is resized and clipped first.
    image = np.asarray(picture(1, size)) // 2 + 64
    for resample in (Image.Resampling.BICUBIC, Image.Resampling.BILINEAR):
        found = crop_resize.center_crop(image, (32, 32), crop_pct, resample)
        expected = whole_resized_then_cut(image, (32, 32), crop_pct, resample)
        assert found.shape == (32, 32, 3) and np.abs(found.astype(int) - expected).max() <= 1
    mask = np.zeros(size[::-1], bool)
    mask[:, size[0] // 2 :] = True
    found = crop_resize.center_crop(mask, (32, 32), crop_pct, Image.Resampling.BICUBIC)
    expected = whole_resized_then_cut(mask, (32, 32), crop_pct, Image.Resampling.NEAREST)
    assert found.dtype == bool and found.shape == (32, 32) and np.mean(found != expected) < 0.05


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (3, 65_536)])
def test_a_line_of_pixels_is_not_blown_up(size, monkeypatch):
    resize = Image.Image.resize

    def bounded(image, shape, *arguments, **options):
        assert shape[0] * shape[1] <= 224 * 224
        return resize(image, shape, *arguments, **options)

    monkeypatch.setattr(Image.Image, "resize", bounded)
    assert crop_resize.prepare(decode.decode(grey_png(*size)), EVALUATION).shape == (224, 224, 3)


@pytest.mark.parametrize("size", [(8200, 8200), (12_000, 12_000), (20_000, 20_000), (65_537, 1)])
def test_a_picture_beyond_the_bounds_is_broken_before_it_is_decoded(size):
    data = grey_png(*size)
    tracemalloc.start()
    with pytest.raises(decode.Broken, match=r"more than the 67,108,864 pixels.*save it smaller"):
        decode.decode(data)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"exif": b"Exif\0\0" + bytes(99)}, {"comment": "\xff" * 99}]
)
def test_the_size_of_a_jpeg_is_that_of_its_header(options):
    for size in ((17, 40), (300, 2), (1, 1)):
        buffer = io.BytesIO()
        picture(1, size).save(buffer, "JPEG", **options)
        data = buffer.getvalue()
        assert decode._jpeg_size(data) == size
        for length in range(0, len(data), 7):
            assert decode._jpeg_size(data[:length]) in (size, None)
    large = data.replace(struct.pack(">BHH", 8, 1, 1), struct.pack(">BHH", 8, 50_000, 50_000), 1)
    with pytest.raises(decode.Broken, match="67,108,864"):
        decode.decode(large)
    assert decode._jpeg_size(b"\x89PNG") is None


def with_scans(size, count, mode="L"):
    """A progressive JPEG whose last scan, of a few bytes, is repeated."""
    buffer = io.BytesIO()
    picture(1, size).convert(mode).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    scan = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + scan * (count - data.count(b"\xff\xda")) + b"\xff\xd9"


def test_a_jpeg_has_a_bounded_number_of_scans():
    start = time.process_time()
    black = Image.new("L", (8192, 8192))
    buffer = io.BytesIO()
    black.save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    bomb = data[:-2] + data[data.rindex(b"\xff\xda") : -2] * 20_000 + b"\xff\xd9"
    for data in (bomb, with_scans((64, 48), decode.MAX_SCANS + 1), with_scans((64, 48), 5000, "RGB")):
        with pytest.raises(decode.Broken, match="more than 64 scans"):
            decode.decode(data)
    assert time.process_time() - start < 10
    assert decode.decode(with_scans((64, 48), decode.MAX_SCANS)).shape == (48, 64, 3)


def test_only_the_scans_of_the_picture_itself_count():
    data = with_scans((64, 48), 8)
    comment = b"\xff\xfe" + struct.pack(">H", 2 + 400) + b"\xff\xda" * 200
    appended = b"\xff\xda\x00\x02" * 500
    expected = decode.decode(data)
    for odd in (data[:2] + comment + data[2:], data + appended, data[:2] + comment + data[2:] + appended):
        np.testing.assert_array_equal(decode.decode(odd), expected)


def test_no_format_leaves_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args, **options: pytest.fail("Ghostscript was run"))
    buffer = io.BytesIO()
    picture(0).save(buffer, "EPS")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(buffer.getvalue())
    with pytest.raises(decode.Broken, match="unknown format"):
        decode.decode(buffer.getvalue())
    with pytest.raises(Unreadable, match="unknown format"):
        ImageFolder(tmp_path)[0]


@pytest.mark.parametrize(
    "array", [np.linspace(0, 1, 64, dtype=np.float32), np.arange(64, dtype=np.int32) * 2000], ids=["float", "int32"]
)
def test_pixels_of_no_known_range_are_broken(array):
    buffer = io.BytesIO()
    Image.fromarray(array.reshape(8, 8)).save(buffer, "TIFF")
    with pytest.raises(decode.Broken, match=r"no known range: save it with 8 or 16 bits"):
        decode.decode(buffer.getvalue())


def test_a_pipe_is_broken_and_not_waited_for(folder, tmp_path):
    os.mkfifo(folder / "ant" / "pipe.png")
    source = ImageFolder(folder)
    with pytest.raises(Unreadable, match="not a regular file"):
        source[4]
    with pytest.raises(UserError, match="not a regular file"):
        crop_resize.read_image(folder / "ant" / "pipe.png", EVALUATION)
    os.truncate(folder / "ant" / "000.png", decode.MAX_BYTES + 1)  # sparse
    with pytest.raises(Unreadable, match="536,870,913 bytes"):
        source[0]
    done = prepare(folder, tmp_path / "out", name="x")
    assert done.num_examples == {"train": 11} and set(done.broken) == {"ant/000.png", "ant/pipe.png"}


def test_annotations_that_cannot_be_read_are_named(tmp_path):
    fill(tmp_path, ("images",), 3)
    for name in ("labels", "Annotations", "masks"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "labels" / "000.txt")
    (tmp_path / "labels" / "001.txt").write_text("0 a b c d")
    (tmp_path / "labels" / "002.txt").write_text("inf 0.5 0.5 1 1")
    (tmp_path / "Annotations" / "000.xml").write_text("<annotation>")
    (tmp_path / "masks" / "000.png").write_bytes(grey_png(12_000, 12_000))
    (tmp_path / "masks" / "001.png").write_text("no picture")
    (tmp_path / "masks" / "002.png").write_bytes(grey_png(20_000, 20_000))
    for source, count in (("yolo", 3), ("voc", 1), ("masks", 3)):
        found = open_annotations(source, path=str(tmp_path))
        assert len(found) == count
        for index in range(count):
            with pytest.raises(UserError, match=rf"The annotation .*/00{index}\.\w+ cannot be read: "):
                found[index]


def test_a_loop_of_links_counts_every_picture_once(folder):
    (folder / "ant" / "up").symlink_to(folder)
    (folder / "bee" / "self").symlink_to(".")
    (folder / "cow" / "neighbour").symlink_to("../ant")
    source = ImageFolder(folder)
    assert len(source) == 12 and np.bincount(source._labels).tolist() == [4, 4, 4]
    assert len(ImageFolder(folder, labels=False)) == 12


def test_links_to_elsewhere_are_followed_once(folder, tmp_path):
    linked = tmp_path / "linked"
    (linked / "ant").mkdir(parents=True)
    (linked / "bee").symlink_to(folder / "bee")
    for name in ("one", "two"):
        (linked / "ant" / name).symlink_to(folder / "ant")
    source = ImageFolder(linked)
    assert source.class_names == ("ant", "bee") and len(source) == 8
    (folder / "bee" / "back").symlink_to(linked)
    assert len(list(image_files(linked / "bee"))) == 4


def test_directories_without_pictures_are_no_classes(folder, caplog):
    (folder / "annotations" / "deep").mkdir(parents=True)
    (folder / "annotations" / "a.txt").write_text("x")
    assert ImageFolder(folder).class_names == ("ant", "bee", "cow")
    assert "directories without pictures are not classes: annotations" in caplog.text


def test_a_class_without_pictures_in_one_split_stays_a_class(splits, caplog):
    (splits / "test" / "bee").mkdir()
    (splits / "test" / "dodo").mkdir()
    train, test = open_split(splits, "train"), open_split(splits, "test")
    assert train.class_names == test.class_names == ("ant", "bee", "cow")
    assert [int(test[i]["label"]) for i in range(4)] == [0, 0, 2, 2]
    assert "directories without pictures are not classes: dodo" in caplog.text and "bee" not in caplog.text
