"""The images that taught a network, as far as it takes to know them again: it must not be tested on them."""

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import Bool, Shaped

from jaxprune.measures.image_cells import DIGEST, cell_means, digest, near_any

_NAME = "training_images"


@dataclasses.dataclass(frozen=True)
class TrainingImages:
    """Hashes of images, and the means of their cells; 208 bytes an image.

    >>> images = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3)).astype(np.uint8)
    >>> TrainingImages.of(images[:2]).include(images)
    array([ True,  True, False, False])

    Attributes:
      digests: hashes of the pixels, one after another.
      cells: the means of the cells, to whole levels.
      shape: of the cells of an image.
    """

    digests: bytes
    cells: bytes
    shape: tuple[int, ...]

    @classmethod
    def of(cls, images: Iterable[Shaped[np.ndarray, "*sides c"]]) -> "TrainingImages":
        """Makes the record of images of one size, with pixels from 0 to 255."""
        digests, cells = [], []
        for image in images:
            digests.append(digest(image))
            cells.append(_whole(cell_means(image)))
        return cls(b"".join(digests), np.stack(cells).tobytes(), cells[0].shape)

    def __len__(self) -> int:
        return len(self.digests) // DIGEST

    def joined(self, record: "TrainingImages | None") -> "TrainingImages":
        """Returns the record of the images of both; without those of other sizes of cells, which cannot be compared."""
        if record is None or record.shape != self.shape:
            return self
        return TrainingImages(self.digests + record.digests, self.cells + record.cells, self.shape)

    def include(self, images: Iterable[Shaped[np.ndarray, "*sides c"]]) -> Bool[np.ndarray, "n"]:
        """Returns which images are among these, or are near copies of some of them, as they are or mirrored."""
        hashes, cells = [], []
        for image in images:
            hashes.append(digest(image))
            cells.append(cell_means(image))
        digests = {self.digests[start : start + DIGEST] for start in range(0, len(self.digests), DIGEST)}
        same = np.array([value in digests for value in hashes], bool)
        means, trained = np.stack(cells), self._means()
        if means.shape[1:] == trained.shape[1:]:
            same |= near_any(means, trained) | near_any(means[:, :, ::-1], trained)
        return same

    def arrays(self) -> dict[str, Shaped[np.ndarray, "n ..."]]:
        """The record as arrays for a file of weights; `from_arrays` reads it."""
        digests = np.frombuffer(self.digests, np.uint8).reshape(-1, DIGEST)
        cells = np.frombuffer(self.cells, np.uint8).reshape(-1, *self.shape)
        return {f"{_NAME}.digests": digests, f"{_NAME}.cells": cells}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "TrainingImages | None":
        """Reads the record of a file; None if there is none, or its arrays do not fit each other."""
        digests, cells = (arrays.get(f"{_NAME}.{name}") for name in ("digests", "cells"))
        if digests is None or cells is None or digests.dtype != np.uint8 or cells.dtype != np.uint8:
            return None
        if digests.shape[1:] != (DIGEST,) or cells.ndim != 4 or not len(digests) == len(cells) > 0:
            return None
        return cls(digests.tobytes(), cells.tobytes(), cells.shape[1:])

    def _means(self) -> np.ndarray:
        return np.frombuffer(self.cells, np.uint8).reshape(-1, *self.shape).astype(np.float32)


def _whole(means: np.ndarray) -> np.ndarray:
    return np.round(means).clip(0, 255).astype(np.uint8)
