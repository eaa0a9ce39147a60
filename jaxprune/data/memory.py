"""Sources decoded once and held in memory, where reading a batch is one gather."""

import functools
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tqdm import tqdm

from jaxprune.data.broken_examples import read_or_next
from jaxprune.data.scenes import Scenes
from jaxprune.data.source import Example, Source, frames_of, turned
from jaxprune.errors import UserError

LIMIT = 2**30  # bytes of pixels up to which a source is held in memory by default


class InMemory:
    """A source with its images, all of one size, decoded in one array.

    Attributes:
      columns: `image` uint8 (n, h, w, 3), `label` int32 (n,), `index` int32 (n,), the example that a row actually holds
        (another one if a file was broken), and `mask` bool (n, h, w) if the source has masks.
    """

    def __init__(self, source: Source, columns: dict[str, np.ndarray]):
        self.name, self.class_names, self.num_classes = source.name, source.class_names, source.num_classes
        self.broken, self.exif, self.num_frames = source.broken, turned(source), frames_of(source)
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["image"])

    def __getitem__(self, index: int) -> Example:
        return {name: column[index] for name, column in self.columns.items()}

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of every image, or of the frames of every clip."""
        return self.columns["image"].shape[-3:-1]


def load(source: Source, *, required: bool = False) -> Source:
    """Returns the source held in memory, or the source itself if sizes differ or it takes more than `LIMIT`.

    Raises:
      UserError: it is `required`, and sizes differ.
    """
    first = read_or_next(source, 0)
    shape = first["image"].shape
    if not required and first["image"].nbytes * len(source) > LIMIT:
        return source
    columns = {name: np.empty((len(source), *np.shape(value)), value.dtype) for name, value in first.items()}
    # Drawing scenes holds the GIL, so more threads would only compete.
    threads = 1 if isinstance(source, Scenes) else default_threads()
    bar = tqdm(total=len(source), desc=f"reading {source.name}", unit="image", disable=None, leave=False)
    with ThreadPoolExecutor(threads) as pool, bar:
        for start in range(0, len(source), 1024):
            rows = range(start, min(start + 1024, len(source)))
            for row, example in zip(rows, pool.map(functools.partial(read_or_next, source), rows), strict=True):
                if example["image"].shape != shape:
                    if required:
                        shapes = (shape, example["image"].shape)
                        sizes = " and ".join("×".join(map(str, sides[:-1])) for sides in shapes)
                        raise UserError(
                            f"in_memory=True needs images of one size, but {source.name!r} holds {sizes} pixels. Leave "
                            "in_memory out to read them on demand."
                        )
                    return source
                for name, value in example.items():
                    columns[name][row] = value
            bar.update(len(rows))
    return InMemory(source, columns)


def default_threads() -> int:
    """Returns the default number of threads that read images."""
    return min(16, os.cpu_count() or 1)
