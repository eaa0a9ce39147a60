"""Image arrays embedded in HTML: PNG, WebP or JPEG in a data URI."""

import base64
import io
import math

import numpy as np
from PIL import Image, features

from jaxprune.errors import UserError
from jaxprune.report.markup import escape
from jaxprune.report.pictures.base import to_uint8

MAX_PNG_BYTES = 24_000  # larger images are assumed to be photographs and are compressed lossily
MAX_PIXELS = 2400  # longest side of an embedded image; larger images are scaled down
SMALL_PIXELS = 160  # images smaller than this are displayed enlarged, without interpolation


def data_uri(image: np.ndarray) -> str:
    """Returns an image as a data URI, for hand-written HTML.

    Args:
      image: (H, W), (H, W, 1), (H, W, 3) or (H, W, 4); uint8, or floating point in [0, 1].

    Raises:
      UserError: the array has another shape.
    """
    media_type, data, _, _ = _encode(image)
    return bytes_uri(media_type, data)


def bytes_uri(media_type: str, data: bytes) -> str:
    """Returns encoded bytes as a data URI."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


def image_element(image: np.ndarray, alt: str) -> str:
    """Returns an `<img>` element that contains the image.

    Args:
      image: as in `data_uri`.
      alt: the alternative text.

    Raises:
      UserError: the array has another shape.
    """
    media_type, data, width, height = _encode(image)
    factor = math.ceil(SMALL_PIXELS / max(width, height))
    pixel = ' class="pixel"' if factor > 1 else ""
    size = f'width="{width * factor}" height="{height * factor}"'
    return f'<img{pixel} src="{bytes_uri(media_type, data)}" {size} alt="{escape(alt)}">'


def _encode(image: np.ndarray) -> tuple[str, bytes, int, int]:
    """Returns (media type, bytes, width, height): PNG, or a lossy format if the PNG is large."""
    array = to_uint8(image)
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[-1] in (3, 4)):
        raise UserError(f"A picture must be (height, width) or (height, width, 1, 3 or 4); this one is {array.shape}.")
    picture = Image.fromarray(array)
    picture.thumbnail((MAX_PIXELS, MAX_PIXELS), Image.Resampling.LANCZOS)
    data, kind = io.BytesIO(), "png"
    picture.save(data, format="PNG", optimize=True)
    if data.tell() > MAX_PNG_BYTES:
        lossy = io.BytesIO()
        if features.check("webp"):
            picture.save(lossy, format="WEBP", quality=88, method=4)
        else:
            picture.convert("RGB").save(lossy, format="JPEG", quality=90, optimize=True)
        if lossy.tell() < data.tell():
            data, kind = lossy, "webp" if features.check("webp") else "jpeg"
    return f"image/{kind}", data.getvalue(), *picture.size
