"""The images that a segmentation network is tuned on, with or without label maps, and how it is tested on them."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxprune import data
from jaxprune.data.arrays import of_arrays
from jaxprune.data.joint.segmentation import Shape
from jaxprune.data.sample import Picked
from jaxprune.data.source import Example, Source
from jaxprune.errors import UserError
from jaxprune.evaluate import Batch
from jaxprune.evaluate.segmentation.at_test import WHOLE, TestTime, shapes_of
from jaxprune.ops.label_maps import IGNORED
from jaxprune.preprocessing import Preprocessing


class PixelImages:
    """Images of any sizes, their label maps if there are any, and the test of a network on them.

    Called with indices it gives the images as batches of the network's size, as `tune` looks for copies among them.

    Args:
      source: the examples, with `label_map` if `has_maps`.
      time: how a network of `time.size` is tested; networks on smaller images in the same way, see `TestTime.at`.
      record: the preprocessing of the network.
      has_maps: whether the examples have label maps.
      batch_size: images a batch.
      num_threads: see `data.eval_batches`.
    """

    def __init__(
        self,
        source: Source,
        time: TestTime,
        record: Preprocessing,
        *,
        has_maps: bool = True,
        batch_size: int = 8,
        num_threads: int | None = None,
    ):
        self.source = source if has_maps else _WithoutMaps(source)
        self.time, self.record, self.has_maps = time, record, has_maps
        self.options = {"batch_size": batch_size, "num_threads": num_threads}

    @classmethod
    def of_arrays(cls, images: np.ndarray, maps: np.ndarray | None, network: Any) -> "PixelImages":
        """Returns images and label maps in memory, whole images.

        Args:
          images: pixels from 0 to 255, (n, h, w, 3).
          maps: the class of each pixel, 255 where there is none, (n, h, w); None without any.
          network: the segmentation network.

        Raises:
          UserError: the arrays do not fit, or name classes that the network does not know.
        """
        images, record = np.asarray(images), network.preprocessing
        if maps is not None:
            maps, count = np.asarray(maps), network.num_classes
            if maps.shape != images.shape[:3]:
                raise UserError(
                    f"labels of shape {maps.shape} are not label maps of images of shape {images.shape}: a "
                    f"segmentation network needs the class of each pixel, {images.shape[:3]}, or no labels."
                )
            if ((maps >= count) & (maps != IGNORED)).any() or (maps < 0).any():
                raise UserError(
                    f"labels has values from {maps.min()} to {maps.max()}, and the network knows classes 0 to "
                    f"{count - 1}: mark pixels of no class with {IGNORED}."
                )
            maps = maps.astype(np.uint8)
        source = of_arrays(images.clip(0, 255).astype(np.uint8), label_maps=maps)
        return cls(source, TestTime(record.sides, WHOLE), record, has_maps=maps is not None)

    def __len__(self) -> int:
        return len(self.source)

    def __call__(self, numbers: Sequence[int] | np.ndarray, record: Preprocessing | None = None) -> Iterable[Batch]:
        return data.eval_batches(self.examples(numbers), preprocessing=record or self.record, **self.options)

    def examples(self, numbers: Sequence[int] | np.ndarray) -> Picked:
        """The examples of these numbers."""
        return Picked(self.source, [int(number) for number in numbers])

    @functools.cached_property
    def shapes(self) -> list[Shape]:
        """Height and width of each image."""
        return shapes_of(self.source)


class _WithoutMaps(Picked):
    """Images whose pixels have no labels."""

    def __init__(self, source: Source):
        super().__init__(source, range(len(source)))

    def __getitem__(self, index: int) -> Example:
        example = super().__getitem__(index)
        image = np.asarray(example["image"])
        void = np.full(image.shape[:2], IGNORED, np.uint8)
        return {"image": image, "label": np.int32(-1), "index": example["index"], "label_map": void}
