"""Crops and resizes decoded pictures on the host, and prepares them as in evaluation. Everything is uint8 (h, w, 3)."""

import math
import os
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from PIL import Image

from jaxprune.data.decode import Broken, Decoded, of_picture, plain, read, to_rgb
from jaxprune.errors import UserError, quoted, shortened
from jaxprune.nn.images import normalize
from jaxprune.preprocessing import Preprocessing

# Aspect ratio above which only the cropped part is resized. Below it the whole image is, as in timm and torchvision;
# the results agree up to rounding and to clipping between the resizing of the two sides.
MAX_ASPECT = 8
_LARGEST_RADIUS = 3  # of Pillow's filters, Lanczos', in pixels of the larger of the two images
Box = tuple[int, int, int, int]  # top, left, height, width


def interpolation(name: str) -> Image.Resampling:
    """Returns Pillow's filter of one of `preprocessing.INTERPOLATIONS`."""
    return Image.Resampling[name.upper()]


def resized_crop(image: np.ndarray, box: Box, shape: tuple[int, int], resample: Image.Resampling) -> np.ndarray:
    """Crops an image or map to `box` and resizes it to `shape`; maps, (h, w), always by nearest neighbour."""
    top, left, height, width = box
    if (height, width) == shape:
        return plain(image[top : top + height, left : left + width])
    return np.asarray(_resized(image, box, shape, resample))


def _resized(image: np.ndarray, box: Box, shape: tuple[int, int], resample: Image.Resampling) -> Image.Image:
    """Crops to `box` and resizes to `shape`, without converting the result to an array."""
    top, left, height, width = box
    if image.ndim == 2:
        resample = Image.Resampling.NEAREST
    picture = image.picture if isinstance(image, Decoded) else None
    if picture is None:
        picture = Image.fromarray(plain(image[top : top + height, left : left + width]))
    elif (height, width) != image.shape[:2]:
        picture = picture.crop((left, top, left + width, top + height))
    return resize(picture, shape, resample)


def resize(picture: Image.Image, shape: tuple[int, int], resample: Image.Resampling) -> Image.Image:
    """Resizes a picture to `shape`, (height, width): first its width, then its height.

    The two orders differ in their rounding, and in the clipping of bicubic and Lanczos overshoots. Pillow before
    version 13, with which published accuracies were measured, always takes this one; later ones choose by the shape.
    """
    height, width = shape
    if resample != Image.Resampling.NEAREST and picture.width != width and picture.height != height:
        picture = picture.resize((width, picture.height), resample)
    return picture.resize((width, height), resample)


def random_box(
    rng: np.random.Generator, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> Box:
    """Draws torchvision's RandomResizedCrop: area in `scale` of the image, width / height in `ratio`, log-uniform.

    After ten draws that do not fit, the largest central box within `ratio` is taken.
    """
    log_ratio = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        area = height * width * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(*log_ratio))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1)), h, w
    h, w = height, width
    if width / height < ratio[0]:
        h = max(round(width / ratio[0]), 1)
    elif width / height > ratio[1]:
        w = max(round(height * ratio[1]), 1)
    return (height - h) // 2, (width - w) // 2, h, w


def clipped_box(
    rng: np.random.Generator, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> Box:
    """Draws the crop of MAE's linear probe: as `random_box`, once, each side between one pixel and the image's."""
    area = height * width * rng.uniform(*scale)
    aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
    w = min(max(round(math.sqrt(area * aspect)), 1), width)
    h = min(max(round(math.sqrt(area / aspect)), 1), height)
    return int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1)), h, w


def bordered_crop(
    rng: np.random.Generator, image: np.ndarray, shape: tuple[int, int], border: int, resample: Image.Resampling
) -> np.ndarray:
    """Resizes an image or mask as far as it covers `shape`, adds a reflected border, and takes a random crop (MFF).

    Args:
      border: pixels on each side.
    """
    height, width = image.shape[:2]
    zoom = max(shape[0] / height, shape[1] / width)
    new = max(shape[0], int(height * zoom + 1e-6)), max(shape[1], int(width * zoom + 1e-6))
    resized = resized_crop(image, (0, 0, height, width), new, resample)
    top, left = (int(rng.integers(0, side - crop + 2 * border + 1)) for side, crop in zip(new, shape, strict=True))
    padding = ((border, border), (border, border), *((0, 0) for _ in resized.shape[2:]))
    return np.pad(resized, padding, "reflect")[top : top + shape[0], left : left + shape[1]]


def center_crop(image: np.ndarray, shape: tuple[int, int], crop_pct: float, resample: Image.Resampling) -> np.ndarray:
    """Resizes so that the crop is `crop_pct` of the shorter side, then takes the centre crop, as usual in evaluation.

    Keeps the aspect ratio. An image that already has `shape` is returned unchanged. If an image is `MAX_ASPECT` times
    longer or wider than `shape`, only the cropped part is resized.
    """
    return crops(image, shape, crop_pct, resample)[0]


def crops(
    image: np.ndarray, shape: tuple[int, int], crop_pct: float, resample: Image.Resampling, count: int = 1
) -> list[np.ndarray]:
    """Returns `count` crops of an image, evenly spaced along its longer side; a single one equals `center_crop`."""
    height, width = image.shape[:2]
    if (height, width) == shape:
        return [plain(image)] * count
    new = resized_sides((height, width), shape, crop_pct)
    top, left = round((new[0] - shape[0]) / 2), round((new[1] - shape[1]) / 2)
    places = [(top, left)]
    if count > 1:
        down, across = new[0] - shape[0], new[1] - shape[1]
        steps = range(count)
        places = [(i * down // (count - 1), left) if down > across else (top, i * across // (count - 1)) for i in steps]
    aspect = height * shape[1] / (width * shape[0])
    if max(aspect, 1 / aspect) > MAX_ASPECT:
        return [_resized_part(image, (*place, *shape), new, resample) for place in places]
    full_box = (0, 0, height, width)
    if (height, width) == new:
        return [resized_crop(image, (*place, *shape), shape, resample) for place in places]
    resized = _resized(image, full_box, new, resample)
    return [np.asarray(resized.crop((left, top, left + shape[1], top + shape[0]))) for top, left in places]


def resized_sides(sides: tuple[int, int], shape: tuple[int, int], crop_pct: float) -> tuple[int, int]:
    """Returns the (height, width) that an image is resized to before its centre is cropped, as in timm's evaluation.

    >>> resized_sides((375, 500), (224, 224), 0.9)
    (248, 330)

    Args:
      sides: of the image.
      shape: of the crop.
    """
    scaled = [math.floor(side / crop_pct + 1e-6) for side in shape]
    if scaled[0] == scaled[1]:
        new = [int(scaled[0] * side / min(sides)) for side in sides]
    else:
        ratio = min(side / target for side, target in zip(sides, scaled, strict=True))
        new = [round(side / ratio) for side in sides]
    return max(shape[0], new[0]), max(shape[1], new[1])


def _resized_part(image: np.ndarray, part: Box, new: tuple[int, int], resample: Image.Resampling) -> np.ndarray:
    """Resizes the image to `new` and returns `part` of the result, without computing the rest."""
    top, left, height, width = part
    down, across = image.shape[0] / new[0], image.shape[1] / new[1]
    right, bottom = min((left + width) * across, image.shape[1]), min((top + height) * down, image.shape[0])
    box = (left * across, top * down, right, bottom)
    if image.ndim == 2:
        resample = Image.Resampling.NEAREST
    if resample == Image.Resampling.NEAREST:
        return np.asarray(Image.fromarray(plain(image)).resize((width, height), resample, box=box))
    # First the width, as in `resize`, and only of the rows on which the result depends.
    x0, y0, x1, y1 = (float(np.float32(edge)) for edge in box)  # as Pillow stores them
    reach = _LARGEST_RADIUS * max(down, 1.0) + 1
    first, last = max(math.floor(y0 - reach), 0), min(math.ceil(y1 + reach), image.shape[0])
    rows = Image.fromarray(plain(image[first:last]))
    rows = rows.resize((width, rows.height), resample, box=(x0, 0, x1, rows.height))
    return np.asarray(rows.resize((width, height), resample, box=(0, y0 - first, width, y1 - first)))


def prepare(image: np.ndarray, preprocessing: Preprocessing) -> np.ndarray:
    """Returns a decoded image, uint8 (h, w, 3), preprocessed as in evaluation: resized and cropped, still uint8.

    A mask or label map, (h, w), is cropped likewise.
    """
    filter_ = interpolation(preprocessing.interpolation)
    if preprocessing.crop == "none":
        return resized_crop(image, (0, 0, *image.shape[:2]), preprocessing.img_size, filter_)
    return center_crop(image, preprocessing.img_size, preprocessing.crop_pct, filter_)


def read_image(path: str | os.PathLike, preprocessing: Preprocessing) -> np.ndarray:
    """Returns a picture file preprocessed as in evaluation, uint8 (h, w, 3).

    Raises:
      UserError: there is no such file, or it is not a picture.
    """
    try:
        image = read(os.path.expanduser(path), upright=preprocessing.exif)
    except (OSError, Broken) as error:
        raise UserError(f"Image {str(path)!r} cannot be read: {shortened(error)}.") from error
    return prepare(image, preprocessing)


def load_images(
    images: Iterable[str | os.PathLike | np.ndarray], preprocessing: Preprocessing
) -> Float[jax.Array, "b h w c"]:
    """Returns pictures as network input: preprocessed as in evaluation, and normalised, float32.

    >>> from jaxprune.models import Preprocessing
    >>> grey = np.full((30, 40, 3), 127, np.uint8)
    >>> load_images([grey], Preprocessing((16, 16))).shape
    (1, 16, 16, 3)

    Args:
      images: files, Pillow's images, or decoded pictures, uint8 (h, w, 3).
      preprocessing: the network's `model.preprocessing`.

    Raises:
      UserError: there are no images, or one cannot be read, or the network reads clips.
    """
    if preprocessing.num_frames:
        raise UserError(
            f"The network reads clips of {preprocessing.num_frames} frames: read videos with jaxprune.data.load_clips."
        )
    several = isinstance(images, Iterable) and not isinstance(images, str | bytes | os.PathLike | Image.Image)
    if not several or (isinstance(images, np.ndarray) and images.ndim != 4):
        value = f"an array of shape {images.shape}" if isinstance(images, np.ndarray) else f"images={quoted(images)}"
        raise UserError(f"{value} is not a list of images: give several files, or uint8 arrays, such as [image].")
    rows = []
    for image in images:
        if isinstance(image, str | os.PathLike):
            rows.append(read_image(image, preprocessing))
        else:
            rows.append(prepare(as_rgb(image, upright=preprocessing.exif), preprocessing))
    if not rows:
        raise UserError("There are no images to load: give files or uint8 arrays of (height, width, 3).")
    return normalized(np.stack(rows), preprocessing.mean, preprocessing.std)


def as_rgb(image: Any, *, upright: bool) -> np.ndarray:
    """Returns a decoded picture, or Pillow's, as uint8 (h, w, 3).

    Raises:
      UserError: it is none, or the range of its pixels is not known.
    """
    if isinstance(image, Image.Image):
        try:
            return of_picture(image, upright=upright)
        except Broken as error:
            raise UserError(f"An image of Pillow cannot be read: {error}.") from error
    if not hasattr(image, "__array__"):
        raise UserError(f"{quoted(image)} is not an image: give files, Pillow's images or uint8 arrays.")
    array = np.asarray(image)
    try:
        if not array.size:
            raise ValueError("no pixels")
        return to_rgb(array)
    except ValueError as error:
        raise UserError(
            f"An image of shape {array.shape} and dtype {array.dtype} is not a decoded picture: give uint8 arrays of "
            "(height, width, 3), with pixels from 0 to 255."
        ) from error


# Compiled, as in every program that reads pixels: NumPy and XLA differ in the last bit.
normalized = jax.jit(normalize, static_argnums=(1, 2))
