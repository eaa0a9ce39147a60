"""A written file is read again and run beside the network it was made of."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxprune.checkpoints.files import write_atomically
from jaxprune.data.images import prepare, read_image, to_rgb
from jaxprune.data.scenes import Scenes
from jaxprune.errors import UserError
from jaxprune.export.program import Program
from jaxprune.preprocessing import Preprocessing

TOLERANCE = 1e-5
BATCHES = (1, 3, 8)  # sizes that a file is run with
_SCENE = 16  # the least side of a scene
_DRAWS = 32  # of noise, to explain rows that differ

Run = Callable[[np.ndarray], Sequence[np.ndarray]]


class Verified(NamedTuple):
    """What came out.

    Attributes:
      difference: the largest of any logit, as a part of the largest logit.
      images: how many were compared.
      ties: how many of them the network itself decides either way, see `verify`.
    """

    difference: float
    images: int
    ties: int


def pixels(
    images: Sequence[Any] | np.ndarray | None, shape: tuple[int, ...], preprocessing: Preprocessing
) -> np.ndarray:
    """Images to compare on, as uint8 of `shape` each.

    Args:
      images: files, or decoded pictures, uint8 (h, w, 3), which are resized and cropped; clips, uint8 of `shape`; None
        draws some of the built-in scenes.

    Raises:
      UserError: there is no image, or one cannot be read.
    """
    if images is None:
        *frames, height, width, channels = shape
        count, sides = math.prod([max(BATCHES), *frames]), (max(height, _SCENE), max(width, _SCENE))
        scenes = Scenes(split="test", num_examples=count, image_size=sides, seed=0)
        drawn = np.stack([scenes[i]["image"][:height, :width] for i in range(count)])
        return drawn.reshape(max(BATCHES), *frames, height, width, channels)
    if not len(images):
        raise UserError("There are no images to compare on: give some, or None for the built-in ones.")
    sized = preprocessing.with_size(shape[-3:-1])
    rows = [_prepared(image, shape, sized) for image in images]
    return np.stack(rows)


def _prepared(image: Any, shape: tuple[int, ...], preprocessing: Preprocessing) -> np.ndarray:
    if not isinstance(image, np.ndarray):
        return read_image(image, preprocessing)
    if image.dtype != np.uint8 or image.ndim != len(shape):
        raise UserError(
            f"An image to compare on is {image.dtype} {image.shape}: give files, or uint8 arrays of {shape}."
        )
    if image.shape == shape:
        return image
    return prepare(to_rgb(image), preprocessing)


def verify(
    run: Run, made: Program, images: np.ndarray, preprocessing: Preprocessing, *, batches: Sequence[int] = BATCHES
) -> Verified:
    """Compares what a file computes with what the network does, on this machine.

    All logits have to agree to 1e-5 of the largest logit of these images, and every step has to keep the same rows of
    each image. Where they do not, the choice may have been a tie for the network itself: that is so if, once normal
    noise of 1e-5 is added to the normalised pixels, the network keeps the file's rows and reaches its logits to 1e-4.
    Half of the images must be no such ties.

    Args:
      run: calls the file.
      images: uint8, see `pixels`.
      batches: sizes of batches; all images are run in the last size, some of them in each other one.

    Raises:
      UserError: the file computes something else.
    """
    offset, scale = (np.asarray(values, np.float32) for values in (preprocessing.mean, preprocessing.std))
    expected_of = jax.jit(made.call)
    fed = images.astype(made.dtype)
    if made.inputs == "normalized":
        fed = ((images.astype(np.float32) / 255 - offset) / scale).astype(np.float32)
    pieces = list(_batches(len(images), batches))
    whole = [np.asarray(part) for part in expected_of(fed)]
    largest = float(np.abs(whole[0]).max())
    worst, ties = 0.0, set()
    for ids in pieces:
        found = [np.asarray(part) for part in run(fed[ids])]
        if [part.shape for part in found] != [(len(ids), *part.shape[1:]) for part in whole]:
            raise UserError(f"it returns arrays of {[part.shape for part in found]}")
        for row, image in enumerate(ids):
            expected, got = [part[image] for part in whole], [part[row] for part in found]
            difference = float(np.abs(got[0] - expected[0]).max())
            if _same_rows(got, expected) and difference <= TOLERANCE * largest:
                worst = max(worst, difference)
            elif _is_tie(made, (images[image] / np.float32(255) - offset) / scale, got, largest):
                ties.add(int(image))
            else:
                what = "" if _same_rows(got, expected) else ", and other rows are kept"
                raise UserError(
                    f"its logits for image {image} in a batch of {len(ids)} differ by {difference:.2g}, where the "
                    f"largest is {largest:.2g}{what}"
                )
    if 2 * len(ties) > len(images):
        raise UserError(f"the network itself decides either way for {len(ties)} of {len(images)} images")
    return Verified(worst / largest if largest else 0.0, len(images), len(ties))


def _batches(count: int, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    """Numbers of the images in each batch, filled up from the front."""
    for size in sizes[:-1]:
        yield np.arange(size) % count
    for start in range(0, count, sizes[-1]):
        yield np.arange(start, start + sizes[-1]) % count


def _same_rows(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    """Whether the steps keep the same rows; their order does not count."""
    return all(np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(found[1:], expected[1:], strict=True))


def _is_tie(made: Program, image: np.ndarray, found: Sequence[np.ndarray], largest: float) -> bool:
    noise = np.random.default_rng(0).normal(scale=TOLERANCE, size=(_DRAWS, *image.shape)).astype(np.float32)
    moved = [np.asarray(part) for part in jax.jit(made.normalized)(image[None] + noise)]
    for draw in range(_DRAWS):
        one = [part[draw] for part in moved]
        if _same_rows(found, one) and np.abs(one[0] - found[0]).max() <= 10 * TOLERANCE * largest:
            return True
    return False


def write_verified(path: Path, data: bytes, load: Callable[[Path], Run], *args: Any, **options: Any) -> Verified:
    """Writes a file, reads it again and calls `verify` on it; only then it gets its name.

    Args:
      load: reads the file and returns what calls it.
      args, options: of `verify`.

    Raises:
      UserError: the file cannot be read again, or computes something else; it is removed then.
    """
    staged = path.with_name(f".{path.name}.unverified")
    write_atomically(staged, data)
    try:
        found = verify(load(staged), *args, **options)
        os.replace(staged, path)
        return found
    except Exception as error:
        why = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise UserError(
            f"{path.name} was written, read again and removed, for it does not compute what the network does: {why}."
        ) from error
    finally:
        staged.unlink(missing_ok=True)
