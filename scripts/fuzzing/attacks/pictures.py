"""Pictures and videos with damaged bytes: pixels within the bounds, or one short reason."""

import io
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from attacks import Case
from attacks.mutations import damaged
from jaxprune.data import decode, video
from jaxprune.errors import UserError

_SHAPE = (24, 32)
_FORMATS = {  # of Pillow: mode, and options of `save`
    "JPEG": ("RGB", {"quality": 90}),
    "JPEG progressive": (
        "RGB",
        {
            "progressive": True,
            "exif": b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00",
        },
    ),
    "JPEG CMYK": ("CMYK", {}),
    "PNG": ("RGBA", {}),
    "PNG palette": ("P", {}),
    "PNG 16 bit": ("I;16", {}),
    "GIF": ("P", {}),
    "WEBP": ("RGB", {}),
    "BMP": ("RGB", {}),
    "PPM": ("RGB", {}),
    "TIFF": ("RGB", {}),
    "TIFF LZW": ("L", {"compression": "tiff_lzw"}),
}
_NUMBERS = (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1)


def _contents() -> dict[str, bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (*_SHAPE, 3)).astype(np.uint8)
    contents = {}
    for name, (mode, options) in _FORMATS.items():
        image, buffer = Image.fromarray(pixels), io.BytesIO()
        image = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257) if mode == "I;16" else image.convert(mode)
        image.save(buffer, name.split(" ")[0], **options)
        contents[name] = buffer.getvalue()
    return contents


def _changed(content: bytes, rng: random.Random) -> bytes:
    """Returns bytes with a number among the first, where sizes are, or damage anywhere."""
    if rng.random() < 0.6:
        return damaged(content, rng)
    width = rng.choice((2, 4))
    number = (rng.choice(_NUMBERS) % 2 ** (8 * width)).to_bytes(width, rng.choice(("big", "little")))
    place = rng.randrange(min(len(content), 200))
    return content[:place] + number + content[place + width :]


def pictures(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields pictures of every format, each damaged once or twice."""
    contents, rng, path = _contents(), random.Random(seed), folder / "picture"
    for number in range(count):
        name = list(contents)[number % len(contents)]
        data = _changed(contents[name], rng)
        path.write_bytes(_changed(data, rng) if data and rng.random() < 0.3 else data)
        yield Case(name, lambda: read(path))


def seeds() -> list[bytes]:
    """Whole pictures of every format."""
    return list(_contents().values())


def read(path: Path) -> bool:
    """Reads a picture; whether its pixels are within the bounds."""
    try:
        pixels = decode.read(path)
    except (decode.Broken, OSError) as error:
        raise UserError(str(error)) from error
    within = pixels.shape[0] * pixels.shape[1] <= decode.MAX_PIXELS and max(pixels.shape) <= decode.MAX_SIDE
    return within and pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3


def clips(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields videos in several containers, damaged."""
    frames = np.random.default_rng(0).integers(0, 256, (12, *_SHAPE, 3)).astype(np.uint8)
    contents = {ending: _encoded(folder / f"whole{ending}", frames) for ending in (".mp4", ".avi", ".mkv")}
    rng = random.Random(seed)
    for number in range(count):
        ending = list(contents)[number % len(contents)]
        path = folder / f"damaged{ending}"
        path.write_bytes(_changed(contents[ending], rng))
        yield Case(f"{ending}, case {number}", lambda path=path: _some_frames(path))


def _encoded(path: Path, frames: np.ndarray) -> bytes:
    av = video.require_av()
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        for values in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(values, format="rgb24")))
        container.mux(stream.encode(None))
    return path.read_bytes()


def _some_frames(path: Path) -> bool:
    try:
        read = video.read_frames(path, lambda count: np.unique(np.linspace(0, count - 1, 4).astype(int)), np.asarray)
    except (video.Broken, OSError) as error:
        raise UserError(str(error)) from error
    return all(frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3 for frame in read.values())
