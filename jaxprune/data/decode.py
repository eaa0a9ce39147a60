"""Decodes picture files on the host to uint8 (h, w, 3), RGB."""

import io
import os
import re
import struct

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from jaxprune.errors import shortened
from jaxprune.files import read_bytes

# Pillow is always used for resizing (with antialiasing, as in torchvision on Pillow images). OpenCV, if installed, only
# decodes JPEG files, which is faster for small pictures. Built on the same libjpeg-turbo, the two decode RGB and grey
# files identically, and CMYK files to within one grey level.
try:
    import cv2  # pyright: ignore[reportMissingImports]
except ImportError:
    cv2 = None

EXTENSIONS: tuple[str, ...] = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp", ".gif"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".tif", ".tiff"),
)
# Pillow supports many more, and passes some to other programs, whatever the extension: PostScript to Ghostscript.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "PPM", "TIFF")
MAX_PIXELS = 2**26  # of a picture to decode, which temporarily takes up to 12 bytes per pixel
MAX_SIDE = 2**16  # resizing one side first keeps the other at full size
MAX_SCANS = 64  # of a JPEG file, each of which passes over all pixels; files in use have up to about 20
MAX_BYTES = 8 * MAX_PIXELS  # of a file: no picture within these bounds is larger, even uncompressed


_SCAN, _END = b"\xff\xda", b"\xff\xd9"
_MARKER = re.compile(rb"\xff+[^\x00\x01\xff\xd0-\xd8]")  # of a segment with a length; compressed pixels contain none
_MAX_SEGMENTS = 2**16


class Decoded(np.ndarray):
    """An image decoded by Pillow: uint8 (h, w, 3), read-only, with Pillow's own copy of it.

    Resizing reads that copy, which saves converting the array back: about 4 % of the time of reading a photograph.

    Attributes:
      picture: pillow's image; None for any array derived from a decoded one.
    """

    picture: Image.Image | None = None


class Broken(ValueError):
    """Raised for bytes that are not an image, a damaged one, or one beyond the bounds on its size."""


def decode(data: bytes, *, upright: bool = True) -> np.ndarray:
    """Returns an encoded image as uint8 (h, w, 3), RGB.

    Grey, palette, RGBA (alpha is dropped), CMYK and 16-bit grey become RGB; of an animation the first frame is taken.
    Photographs are rotated according to their EXIF tag unless `upright` is off (torchvision and timm do not rotate).
    Raises `Broken` for data that are not an image of `FORMATS`, are damaged, have more than `MAX_PIXELS` pixels or a
    side beyond `MAX_SIDE`, or have pixels of unknown range: floating-point numbers, or 32-bit integers of a TIFF file.
    """
    try:
        return _decode(data, upright)
    except Broken:
        raise
    except UnidentifiedImageError as error:
        raise Broken("no image, or of an unknown format" if data else "empty file") from error
    # Decoders raise many kinds of exceptions on damaged data.
    except Exception as error:
        raise Broken(f"{type(error).__name__}: {shortened(error)}") from error


def open_image(data: bytes) -> Image.Image:
    """Opens an encoded image: reads its header without decoding pixels.

    Raises:
      Broken: it is too large.
      Exception: whatever Pillow raises for data that are not an image of `FORMATS`.
    """
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Broken(_too_large("it")) from error
    _check_size(*image.size)
    return image


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise Broken(_too_large(f"{width:,}×{height:,} pixels"))


def _too_large(size: str) -> str:
    return (
        f"{size} is more than the {MAX_PIXELS:,} pixels, or {MAX_SIDE:,} per side, that are decoded: save it smaller, "
        "or cut into pieces"
    )


def _decode(data: bytes, upright: bool) -> np.ndarray:
    _check_scans(data)
    # OpenCV returns partial images of truncated JPEG files, so it only gets complete files.
    if cv2 is not None and b"\xff\xd9" in data[-16:] and (size := _jpeg_size(data)):
        _check_size(*size)
        orientation = 0 if upright else cv2.IMREAD_IGNORE_ORIENTATION
        bgr = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | orientation)
        if bgr is not None:
            return cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
    with open_image(data) as image:
        return of_picture(image, upright=upright)


def of_picture(image: Image.Image, *, upright: bool = True) -> np.ndarray:
    """Returns Pillow's image as `decode` does its file.

    Raises:
      Broken: the range of its pixels is not known.
    """
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):
        # Pillow would clip them to 0..255: black if they range from 0 to 1, white if they range to 65535.
        raise Broken(f"pixels of mode {image.mode!r} have no known range: save it with 8 or 16 bits per channel")
    if upright:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        # 16-bit grey: Pillow's own conversion would clip it to white.
        return to_rgb(np.clip(np.asarray(image), 0, 65535).astype(np.uint16))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode != "RGB":
        image = image.convert("RGB")
    array = np.asarray(image).view(Decoded)
    array.picture = image
    return array


def _check_scans(data: bytes) -> None:
    """Raises for a JPEG file with so many scans that decoding takes minutes: each may be a few bytes."""
    if data[:2] != b"\xff\xd8" or data.count(_SCAN) <= MAX_SCANS:
        return
    # The bytes of a scan's marker may also be part of a thumbnail, or of what a camera appends: only scans count.
    count = segments = 0
    marker = _MARKER.search(data, 2)
    while marker and not marker[0].endswith(_END):
        count += marker[0].endswith(_SCAN)
        segments += 1
        if count > MAX_SCANS or segments > _MAX_SEGMENTS:
            raise Broken(f"it has more than {MAX_SCANS} scans, which take too long to decode: save it again")
        length = int.from_bytes(data[marker.end() : marker.end() + 2], "big")
        marker = _MARKER.search(data, marker.end() + length)


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Returns (width, height) from the header of a JPEG file; None for other files.

    Reading the header with Pillow takes as long as decoding a small picture.
    """
    if data[:2] != b"\xff\xd8":
        return None
    place = data.find(b"\xff", 2)
    while 0 < place < len(data) - 9:
        marker = data[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame
            height, width = struct.unpack(">HH", data[place + 5 : place + 9])
            return width, height
        if marker in (0xD9, 0xDA):  # the end, or pixels
            return None
        has_length = marker not in (0x00, 0x01, 0xFF) and not 0xD0 <= marker <= 0xD7
        length = int.from_bytes(data[place + 2 : place + 4], "big") if has_length else 0
        place = data.find(b"\xff", place + 1 + (1 + length if has_length else 0))
    return None


def read(path: str | os.PathLike, *, upright: bool = True) -> np.ndarray:
    """Returns a picture file as uint8 (h, w, 3), RGB; see `decode`.

    Raises:
      OSError: it is not a regular file, has more than `MAX_BYTES` bytes, or cannot be read.
      Broken: see `decode`.
    """
    return decode(read_bytes(path, MAX_BYTES), upright=upright)


def to_rgb(array: np.ndarray) -> np.ndarray:
    """Converts a decoded array, (h, w), (h, w, 1 | 3 | 4) or frames of these, uint8 or uint16, to uint8 (h, w, 3)."""
    array = np.asarray(array)
    if array.ndim == 4:
        array = array[0]
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[-1] not in (1, 3, 4) or array.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"not an image: shape {array.shape}, dtype {array.dtype}")
    if array.dtype == np.uint16:
        array = (array >> 8).astype(np.uint8)
    if array.shape[-1] == 1:
        return np.repeat(array, 3, axis=-1)
    return array[..., :3]


def plain(image: np.ndarray) -> np.ndarray:
    """Returns a decoded image, or a part of one, as an ordinary array."""
    return image.view(np.ndarray) if isinstance(image, Decoded) else image
