"""Verifies an exported file: it is read again and compared with the network."""

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from PIL import Image

from jaxprune.data.crop_resize import as_rgb, prepare, read_image
from jaxprune.data.decode import to_rgb
from jaxprune.data.scenes import Scenes
from jaxprune.errors import UserError
from jaxprune.export.exported_function import Program
from jaxprune.files import write_atomically
from jaxprune.preprocessing import Preprocessing

TOLERANCE = 1e-5
BATCHES = (1, 3, 8)  # batch sizes to run a file with
_SCENE = 16  # the smallest side of a scene
_DRAWS = 32  # noise samples, to explain differing rows

Run = Callable[..., Sequence[np.ndarray]]  # of images, or of the arrays that a segment takes

_log = logging.getLogger(__name__)


class Verified(NamedTuple):
    """The result of a verification.

    Attributes:
      difference: the largest absolute difference of logits, relative to the largest logit.
      images: number of images compared.
      ties: number of images with ties in the network's own choice of rows, see `verify`.
    """

    difference: float
    images: int
    ties: int


def pixels(
    images: Sequence[Any] | np.ndarray | None, shape: tuple[int, ...], preprocessing: Preprocessing
) -> np.ndarray:
    """The images for the comparison, uint8 of `shape` each.

    Args:
      images: files, or decoded pictures, uint8 (h, w, 3), which are resized and cropped; clips, uint8 of `shape`; None
        draws built-in scenes.

    Raises:
      UserError: there are no images, or one cannot be read.
    """
    if images is None:
        *frames, height, width, channels = shape
        count, sides = math.prod([max(BATCHES), *frames]), (max(height, _SCENE), max(width, _SCENE))
        scenes = Scenes(split="test", num_examples=count, image_size=sides, seed=0)
        crops = np.stack([scenes[i]["image"][:height, :width] for i in range(count)])
        if channels != crops.shape[-1]:  # of another number of channels, each is the mean of red, green and blue
            crops = np.repeat(crops.mean(-1, keepdims=True).astype(np.uint8), channels, axis=-1)
        return crops.reshape(max(BATCHES), *frames, height, width, channels)
    if not len(images):
        raise UserError("There are no images for the comparison: give some, or None for the built-in ones.")
    sized = preprocessing.with_size(shape[-3:-1])
    rows = [_prepared(image, shape, sized) for image in images]
    return np.stack(rows)


def _prepared(image: Any, shape: tuple[int, ...], preprocessing: Preprocessing) -> np.ndarray:
    if isinstance(image, Image.Image):
        return prepare(as_rgb(image, upright=preprocessing.exif), preprocessing)
    if not isinstance(image, np.ndarray):
        return read_image(image, preprocessing)
    if image.dtype != np.uint8 or image.ndim != len(shape):
        raise UserError(
            f"An image for the comparison is {image.dtype} {image.shape}: give files, or uint8 arrays of {shape}."
        )
    if image.shape == shape:
        return image
    return prepare(to_rgb(image), preprocessing)


def verify(
    run: Run, exported: Program, images: np.ndarray, preprocessing: Preprocessing, *, batches: Sequence[int] = BATCHES
) -> Verified:
    """Compares the outputs of a file with those of the network, on this machine.

    All logits must agree to 1e-5 of the largest logit, and every step must keep the same rows of each image. A
    difference is excused if it is a tie for the network itself: with normal noise of 1e-5 added to the normalised
    pixels, the network keeps the file's rows and reproduces its logits to 1e-4. At most half of the images may be such
    ties.

    Args:
      run: runs the file.
      images: uint8 images, see `pixels`.
      batches: batch sizes; all images are run with the last one, some of them with each of the others.

    Raises:
      UserError: the file's outputs differ.
    """
    offset, scale = (np.asarray(values, np.float32) for values in (preprocessing.mean, preprocessing.std))
    expected_of = jax.jit(exported.call)
    fed = images.astype(exported.dtype)
    if exported.inputs == "normalized":
        fed = ((images.astype(np.float32) / 255 - offset) / scale).astype(np.float32)
    pieces = list(_batches(len(images), batches))
    expected_parts = [np.asarray(part) for part in expected_of(fed)]
    largest = float(np.abs(expected_parts[0]).max())
    worst, ties = 0.0, set()
    for place, ids in enumerate(pieces):
        if place < len(batches):  # a size that is compiled now
            _log.info("Comparing in batches of %d.", len(ids))
        outputs = [np.asarray(part) for part in run(fed[ids])]
        if [part.shape for part in outputs] != [(len(ids), *part.shape[1:]) for part in expected_parts]:
            raise UserError(f"it returns arrays of {[part.shape for part in outputs]}")
        for row, image in enumerate(ids):
            expected, got = [part[image] for part in expected_parts], [part[row] for part in outputs]
            difference = float(np.abs(got[0] - expected[0]).max())
            if _same_rows(got, expected) and difference <= TOLERANCE * largest:
                worst = max(worst, difference)
            elif _is_tie(exported, (images[image] / np.float32(255) - offset) / scale, got, largest):
                ties.add(int(image))
            else:
                consequence = "" if _same_rows(got, expected) else ", and it keeps other rows"
                raise UserError(
                    f"its logits for image {image} in a batch of {len(ids)} differ by {difference:.2g}, where the "
                    f"largest is {largest:.2g}{consequence}"
                )
    if 2 * len(ties) > len(images):
        raise UserError(f"the network's own choice of rows is a tie for {len(ties)} of {len(images)} images")
    return Verified(worst / largest if largest else 0.0, len(images), len(ties))


def _batches(count: int, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    """Indices of the images in each batch, padded with the first ones."""
    for size in sizes[:-1]:
        yield np.arange(size) % count
    for start in range(0, count, sizes[-1]):
        yield np.arange(start, start + sizes[-1]) % count


def _same_rows(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    """Whether the steps keep the same rows, in any order."""
    return all(np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(outputs[1:], expected[1:], strict=True))


def _is_tie(exported: Program, image: np.ndarray, outputs: Sequence[np.ndarray], largest: float) -> bool:
    noise = np.random.default_rng(0).normal(scale=TOLERANCE, size=(_DRAWS, *image.shape)).astype(np.float32)
    moved = [np.asarray(part) for part in jax.jit(exported.normalized)(image[None] + noise)]
    for draw in range(_DRAWS):
        moved_parts = [part[draw] for part in moved]
        if _same_rows(outputs, moved_parts) and np.abs(moved_parts[0] - outputs[0]).max() <= 10 * TOLERANCE * largest:
            return True
    return False


def write_verified(path: Path, data: bytes, load: Callable[[Path], Run], *args: Any, **options: Any) -> Verified:
    """Writes a file, reads it again and calls `verify` on it; only then is it renamed to `path`.

    Args:
      load: reads the file and returns a function that runs it.
      args, options: arguments of `verify`.

    Raises:
      UserError: the file cannot be read, or its outputs differ; it is then removed, and an earlier one at `path` stays.
    """
    staged = path.with_name(f".{path.name}.unverified")
    write_atomically(staged, data)
    try:
        _log.info("%s: reading the file, %.1f MB, and comparing it with the network.", path.name, len(data) / 1e6)
        differences = verify(load(staged), *args, **options)
        os.replace(staged, path)
        return differences
    except Exception as error:
        why = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        earlier = f" The file that was at {path} before is unchanged." if path.exists() else ""
        outcome = "its outputs differ from the network's" if isinstance(error, UserError) else "it could not be run"
        raise UserError(f"{path.name} was removed after a check, because {outcome}: {why}.{earlier}") from error
    finally:
        staged.unlink(missing_ok=True)
