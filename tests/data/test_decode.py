"""Single images: formats, damage, crops, and whole files."""

import io

import jax.numpy as jnp
import numpy as np
import pytest
from pictures import picture
from PIL import Image

from jaxprune.data import crop_resize, decode
from jaxprune.data.crop_resize import load_images, read_image
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing


def encoded(image, **options):
    buffer = io.BytesIO()
    image.save(buffer, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA", "I;16", "RGB"])
def test_all_modes_are_converted_to_rgb(mode):
    grey = np.tile(np.arange(0, 256, 8, dtype=np.uint8), (32, 1))
    if mode == "I;16":
        image = Image.fromarray(grey.astype(np.uint16) << 8)
    else:
        image = Image.fromarray(grey).convert("RGB").convert(mode, palette=Image.Palette.ADAPTIVE)
    decoded = decode.decode(encoded(image, format="TIFF" if mode == "CMYK" else "PNG"))
    assert decoded.shape == (32, 32, 3) and decoded.dtype == np.uint8
    if mode != "1":
        assert np.abs(decoded.astype(int) - grey[..., None]).max() <= 4


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "WEBP", "GIF", "PPM", "TIFF"])
def test_every_format_is_read(form):
    smooth = Image.fromarray(np.tile(np.arange(0, 240, 10, dtype=np.uint8)[:, None, None], (1, 30, 3)))
    decoded = decode.decode(encoded(smooth, format=form))
    assert np.abs(decoded.astype(int) - np.asarray(smooth)).max() < 12


def test_exif_rotation_is_optional():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(picture(3, (20, 10)), format="JPEG", exif=exif)
    assert decode.decode(data, upright=False).shape == (10, 20, 3)
    assert decode.decode(data).shape == (20, 10, 3)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP"])
def test_truncated_files_are_broken(form):
    data = encoded(picture(3, (64, 64)), format=form)
    with pytest.raises(decode.Broken):
        decode.decode(data[: len(data) // 2])
    with pytest.raises(decode.Broken, match="empty file"):
        decode.decode(b"")


def test_opencv_and_pillow_agree(monkeypatch):
    pytest.importorskip("cv2")
    data = encoded(picture(5, (40, 30)), format="JPEG", quality=80)
    fast = decode.decode(data)
    monkeypatch.setattr(decode, "cv2", None)
    assert np.abs(fast.astype(int) - decode.decode(data)).max() <= 4


def test_random_boxes_have_the_requested_area_and_aspect():
    rng = np.random.default_rng(0)
    boxes = np.array([crop_resize.random_box(rng, 100, 140, (0.2, 0.5), (3 / 4, 4 / 3)) for _ in range(500)])
    top, left, h, w = boxes.T
    assert np.all((top >= 0) & (left >= 0) & (top + h <= 100) & (left + w <= 140))
    share, aspect = h * w / 14000, w / h
    assert 0.19 < share.min() < 0.23 and 0.47 < share.max() < 0.51
    assert 0.72 < aspect.min() < 0.78 and 1.28 < aspect.max() < 1.38
    assert abs(np.log(aspect).mean()) < 0.03


@pytest.mark.parametrize(
    ("shape", "box"), [((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10)), ((10, 12), (0, 0, 10, 12))]
)
def test_random_box_falls_back_to_the_center(shape, box):
    assert crop_resize.random_box(np.random.default_rng(0), *shape, (4.0, 5.0), (3 / 4, 4 / 3)) == box


class Draws:
    """A generator that draws fixed numbers."""

    def __init__(self, *values):
        self.values = list(values)

    def uniform(self, low, high):
        return low + (high - low) * self.values.pop(0)

    def integers(self, low, high):
        return int(low + (high - low) * self.values.pop(0))


@pytest.mark.parametrize(
    ("shape", "draws", "box"),
    [
        ((100, 100), (0.5, 0.5, 0.5, 0.0), (14, 0, 73, 73)),
        ((50, 200), (1.0, 0.5, 0.9, 0.5), (0, 50, 50, 100)),  # of 100 x 100, which is higher than the image
        ((10, 1000), (0.0, 0.0, 0.0, 1.0 - 1e-9), (0, 976, 10, 24)),
    ],
)
def test_clipped_boxes_are_drawn_once(shape, draws, box):
    assert crop_resize.clipped_box(Draws(*draws), *shape, (0.08, 1.0), (3 / 4, 4 / 3)) == box


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (3, 1)])
def test_the_crop_of_a_tiny_image_has_a_pixel(shape):
    for seed in range(200):
        for draw, ratio in ((crop_resize.clipped_box, (3 / 4, 4 / 3)), (crop_resize.random_box, (3.0, 4.0))):
            _, _, h, w = draw(np.random.default_rng(seed), *shape, (0.08, 1.0), ratio)
            assert 1 <= h <= shape[0] and 1 <= w <= shape[1]


# What timm 1.0.31's `create_transform` resizes to, with torchvision 0.28: (image, crop, crop_pct, result).
RESIZED = [
    ((375, 500), (224, 224), 0.875, (256, 341)),
    ((375, 500), (224, 224), 0.9, (248, 330)),
    ((500, 375), (224, 224), 0.9, (330, 248)),
    ((480, 641), (224, 224), 0.95, (235, 313)),
    ((375, 500), (384, 384), 1.0, (384, 512)),
    ((375, 500), (224, 192), 0.9, (248, 331)),
    ((375, 500), (192, 320), 0.875, (274, 365)),
    ((640, 360), (160, 160), 160 / 182, (323, 182)),
]


@pytest.mark.parametrize(("sides", "shape", "crop_pct", "expected"), RESIZED)
def test_images_are_resized_as_in_timm(sides, shape, crop_pct, expected):
    assert crop_resize.resized_sides(sides, shape, crop_pct) == expected


def test_what_is_no_list_of_images_is_refused(tmp_path):
    record, picture = Preprocessing((16, 16)), np.full((20, 24, 3), 99, np.uint8)
    for wrong in ("photo.jpg", picture, None):
        with pytest.raises(UserError, match="is not a list of images: give several files, or uint8 arrays, such as"):
            load_images(wrong, record)
    with pytest.raises(UserError, match=r"shape \(20, 24, 3\) and dtype float64 is not a decoded picture"):
        load_images([picture / 255], record)
    expected = load_images([picture], record)
    np.testing.assert_array_equal(load_images([Image.fromarray(picture)], record), expected)
    np.testing.assert_array_equal(load_images(picture[None], record), expected)
    for wrong in (np.zeros((0, 20, 3), np.uint8), np.zeros((20, 24, 2), np.uint8)):
        with pytest.raises(UserError, match="is not a decoded picture"):
            load_images([wrong], record)
    with pytest.raises(UserError, match="7 is not an image: give files, Pillow's images or uint8 arrays"):
        load_images([7], record)
    with pytest.raises(UserError, match="An image of Pillow cannot be read: pixels of mode 'F' have no known range"):
        load_images([Image.fromarray(picture[..., 0] / np.float32(255))], record)
    # Lists are the same record as tuples.
    same = Preprocessing([16, 16], mean=list(record.mean), std=list(record.std))
    assert same == record and hash(same) == hash(record)
    np.testing.assert_array_equal(load_images([picture], same), expected)


def test_center_crop_resizes_and_crops():
    image = np.asarray(picture(1, (80, 60)))
    whole = np.asarray(Image.fromarray(image).resize((42, 32), Image.Resampling.BICUBIC))  # 28 of 32, short side
    view = crop_resize.center_crop(image, (28, 28), 0.875, Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(view, whole[2:30, 7:35])
    same = crop_resize.center_crop(image, (60, 80), 0.875, Image.Resampling.BICUBIC)
    assert same is image
    assert crop_resize.center_crop(image, (40, 20), 1.0, Image.Resampling.BICUBIC).shape == (40, 20, 3)


@pytest.mark.parametrize("name", ["bilinear", "bicubic", "lanczos"])
def test_the_width_is_resized_before_the_height(name):
    """As every Pillow before version 13 does: for tall images the order shows."""
    tall, filter_ = picture(1, (40, 90)), crop_resize.interpolation(name)
    wide = np.asarray(tall.resize((30, 90), filter_).resize((30, 20), filter_))
    for image in (np.asarray(tall), np.asarray(tall).view(decode.Decoded)):
        np.testing.assert_array_equal(crop_resize.resized_crop(image, (0, 0, 90, 40), (20, 30), filter_), wide)
    whole = np.asarray(tall.resize((16, 90), filter_).resize((16, 36), filter_))
    np.testing.assert_array_equal(crop_resize.center_crop(np.asarray(tall), (16, 16), 1.0, filter_), whole[10:26])


@pytest.mark.parametrize("name", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("size", [(7, 600), (20, 1000), (600, 7)])
def test_of_an_elongated_image_the_width_is_resized_before_the_height_too(size, name):
    long, filter_ = picture(1, size), crop_resize.interpolation(name)
    side = min(size)
    shape = (side // 2, side // 2)
    new = tuple(int(2 * length / side * shape[0] / 2 + 1e-6) for length in reversed(size))
    top, left = (round((new[i] - shape[i]) / 2) for i in (0, 1))
    down, across = size[1] / new[0], size[0] / new[1]
    first = long.resize((shape[1], size[1]), filter_, box=(left * across, 0, (left + shape[1]) * across, size[1]))
    second = first.resize(shape[::-1], filter_, box=(0, top * down, shape[1], (top + shape[0]) * down))
    np.testing.assert_array_equal(crop_resize.center_crop(np.asarray(long), shape, 1.0, filter_), np.asarray(second))


@pytest.mark.parametrize("orientation", [1, 6])
def test_pillows_own_copy_gives_the_same_crops(orientation, monkeypatch):
    monkeypatch.setattr(decode, "cv2", None)
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = decode.decode(encoded(picture(0, (40, 60)), format="JPEG", exif=exif))
    array = np.array(decoded)
    assert isinstance(decoded, decode.Decoded) and decoded.picture is not None and type(array) is np.ndarray
    # What could differ from Pillow's copy does not have it.
    assert not decoded.flags.writeable and decoded[2:].picture is None and (decoded + 0).picture is None
    bicubic = crop_resize.interpolation("bicubic")
    for box in ((0, 0, *array.shape[:2]), (3, 5, 20, 30), (3, 5, 16, 16)):
        results = [crop_resize.resized_crop(image, box, (16, 16), bicubic) for image in (decoded, array)]
        assert type(results[0]) is np.ndarray
        np.testing.assert_array_equal(*results)
    for shape, crop_pct in (((16, 16), 0.875), (array.shape[:2], 1.0), ((min(array.shape[:2]), 8), 1.0)):
        results = [crop_resize.crops(image, shape, crop_pct, bicubic, 3) for image in (decoded, array)]
        assert all(type(each) is np.ndarray for each in results[0])
        np.testing.assert_array_equal(*results)


def test_read_image(tmp_path):
    picture(1, (40, 20)).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", Preprocessing((16, 16))).shape == (16, 16, 3)
    np.testing.assert_array_equal(
        read_image(tmp_path / "a.png", Preprocessing((20, 40))), np.asarray(picture(1, (40, 20)))
    )
    (tmp_path / "b.png").write_text("x")
    for name in ("b.png", "c.png"):
        with pytest.raises(UserError, match=rf"{name}' cannot be read"):
            read_image(tmp_path / name, Preprocessing((16, 16)))


def test_an_image_of_pillow_is_read_as_its_file(tmp_path):
    record = Preprocessing((16, 16))
    grey = Image.fromarray(np.linspace(0, 65535, 400).reshape(20, 20).astype(np.uint16))
    clear = Image.fromarray(np.arange(400, dtype=np.uint8).reshape(20, 20) // 2, "P")
    clear.putpalette([value for k in range(256) for value in (k, 255 - k, k // 2)])
    clear.info["transparency"] = bytes(range(256))
    for image in (grey, clear, Image.fromarray(np.full((20, 20, 4), 90, np.uint8))):
        image.save(tmp_path / "image.png")
        np.testing.assert_array_equal(load_images([image], record), load_images([tmp_path / "image.png"], record))
    pixels = np.full((20, 20, 3), 90, np.uint8)
    np.testing.assert_array_equal(load_images([jnp.asarray(pixels)], record), load_images([pixels], record))


def test_a_grey_photograph_of_16_bits_is_turned_too():
    image = Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) << 6)
    tags = image.getexif()
    tags[0x0112] = 6
    data = encoded(image, format="PNG", exif=tags)
    assert decode.decode(data).shape == (30, 20, 3) and decode.decode(data, upright=False).shape == (20, 30, 3)
