"""The images of a tuning: an array, a function that shows them by index, or images with label maps."""

from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxprune.dense import Segmenter
from jaxprune.errors import UserError
from jaxprune.evaluate import Batch
from jaxprune.ops.resize import resize
from jaxprune.preprocessing import Preprocessing
from jaxprune.tune import blockwise
from jaxprune.tune.pixel_images import PixelImages

# Indices of images -> batches with `image`, and `label`; with `record=`, prepared for a network on smaller images.
Show = Callable[..., Iterable[Batch]]


def shown_images(
    model: Any, images: np.ndarray | Show | PixelImages, labels: np.ndarray | None, num_images: int | None
) -> tuple[Show | PixelImages, int]:
    """What shows the images of a tuning, and their number.

    Raises:
      UserError: the images are of another kind of network; or an argument is missing, or has no effect on them.
    """
    of_pixels = isinstance(model, Segmenter)
    if callable(images) and isinstance(images, PixelImages) != of_pixels:
        classified, function = (("whole images", "a function"), ("pixels", "tune.PixelImages"))[of_pixels]
        raise UserError(
            f"A {type(model).__name__} classifies {classified}: give an array of images (n, h, w, 3), or {function}."
        )
    if callable(images) and labels is not None:
        raise UserError("labels are those of an array of images, and these images come with theirs: leave labels out.")
    if callable(images) and not of_pixels:
        if num_images is None:
            raise UserError("images is a function, which does not say how many there are: give num_images.")
        return images, num_images
    if num_images not in (None, len(images)):
        raise UserError(f"num_images={num_images} has no effect, as there are {len(images)} images: leave it out.")
    if of_pixels:
        images = images if callable(images) else PixelImages.of_arrays(images, labels, model)
        return images, len(images)
    return batches_of(images, labels), len(images)


def batches_of(images: np.ndarray, labels: np.ndarray | None) -> Show:
    """What shows an array of images, (n, h, w, 3), with a label each, -1 without any.

    Raises:
      UserError: there are more or fewer labels.
    """
    classes = np.full(len(images), -1, np.int32) if labels is None else np.asarray(labels)
    if classes.shape != (len(images),):
        raise UserError(f"There are {len(images)} images and labels of shape {classes.shape}: give one class an image.")

    def show(numbers: np.ndarray, record: Preprocessing | None = None) -> Iterable[Batch]:
        batch = blockwise.evaluation_batch()
        for start in range(0, len(numbers), batch):
            rows = numbers[start : start + batch]
            pictures = np.asarray(images[rows])
            if record is not None:
                pixels = jnp.asarray(pictures, jnp.float32)
                # Of an integer dtype: floating-point images count as normalised.
                smaller = np.asarray(resize(pixels, record.sides, "bicubic", antialias=True))
                pictures = np.rint(smaller).clip(0, 255).astype(np.uint8)
            yield {"image": pictures, "label": classes[rows]}

    return show
