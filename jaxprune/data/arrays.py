"""A source of images that are in memory as one array."""

from collections.abc import Sequence

import numpy as np

from jaxprune.data.memory import InMemory
from jaxprune.data.source import Source
from jaxprune.errors import UserError


class _Unnamed:
    """What `InMemory` asks of the source that it replaces."""

    name, broken = "images", dict[str, str]()

    def __init__(self, class_names: Sequence[str]):
        self.class_names, self.num_classes = tuple(class_names), len(class_names)


def of_arrays(
    images: np.ndarray,
    labels: np.ndarray | None = None,
    class_names: Sequence[str] = (),
    *,
    label_maps: np.ndarray | None = None,
) -> Source:
    """Returns a source of images in memory.

    >>> len(of_arrays(np.zeros((5, 8, 8, 3), np.uint8)))
    5

    Args:
      images: pixels from 0 to 255, uint8 (n, h, w, 3).
      labels: (n,); None: all -1.
      class_names: of the labels.
      label_maps: the class of each pixel, uint8 (n, h, w), the column `label_map`; None without any.

    Raises:
      UserError: the images are not such an array, or the labels do not fit them.
    """
    images = np.asarray(images)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3 or not len(images):
        raise UserError(
            f"Images are one array of pixels from 0 to 255, uint8 (n, h, w, 3), and this one is {images.dtype} "
            f"{images.shape}: give for example np.stack([np.asarray(image) for image in pictures])."
        )
    column = np.full(len(images), -1) if labels is None else np.asarray(labels)
    if column.shape != (len(images),):
        raise UserError(f"There are {len(images)} images and labels of shape {column.shape}: give one label an image.")
    numbers = np.arange(len(images), dtype=np.int32)
    columns = {"image": images, "label": column.astype(np.int32), "index": numbers}
    columns |= {} if label_maps is None else {"label_map": label_maps}
    return InMemory(_Unnamed(class_names), columns)  # type: ignore[arg-type]
