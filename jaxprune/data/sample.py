"""A small sample of a source."""

import numpy as np

from jaxprune.data.rng import SAMPLE, generator
from jaxprune.data.source import Example, Source, example_name, frames_of, turned


class Sample:
    """Examples of a source, renumbered: one of each of `count` equal stretches of it, always the same one.

    So a sample is representative of a source that is sorted by class, and of one whose classes take turns, of which
    every second example would have half the classes.

    Args:
      source: The examples to choose from.
      count: How many to choose; all, if the source has fewer.
    """

    def __init__(self, source: Source, count: int):
        self.name, self.class_names, self.num_classes = source.name, source.class_names, source.num_classes
        self.broken, self.exif, self.num_frames = source.broken, turned(source), frames_of(source)
        self._source, self._count = source, min(count, len(source))
        ends = np.arange(self._count + 1) * len(source) // max(self._count, 1)
        drawn = generator(0, SAMPLE, 0, 0).integers(0, np.diff(ends))
        self._places = (ends[:-1] + drawn).tolist()

    @property
    def names(self) -> tuple[str, ...]:
        """What messages call the examples."""
        return tuple(example_name(self._source, place) for place in self._places)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Example:
        return {**self._source[self._places[index]], "index": np.int32(range(self._count)[index])}
