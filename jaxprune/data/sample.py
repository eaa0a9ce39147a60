"""A small sample of a source, and examples of it by number."""

from collections.abc import Sequence

import numpy as np

from jaxprune.data.rng import SAMPLE, generator
from jaxprune.data.source import Example, Source, example_name, frames_of, turned


class Picked:
    """Examples of a source in an order of their own, renumbered.

    Args:
      source: The examples to choose from.
      places: Their numbers in it.
    """

    def __init__(self, source: Source, places: Sequence[int]):
        self.name, self.class_names, self.num_classes = source.name, source.class_names, source.num_classes
        self.broken, self.exif, self.num_frames = source.broken, turned(source), frames_of(source)
        self._source, self._places = source, [int(place) for place in places]

    @property
    def names(self) -> tuple[str, ...]:
        """What messages call the examples."""
        return tuple(example_name(self._source, place) for place in self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Example:
        return {**self._source[self._places[index]], "index": np.int32(range(len(self))[index])}


class Sample(Picked):
    """Examples of a source, renumbered: one of each of `count` equal stretches of it, always the same one.

    So a sample is representative of a source that is sorted by class, and of one whose classes take turns, of which
    every second example would have half the classes.

    Args:
      source: The examples to choose from.
      count: How many to choose; all, if the source has fewer.
    """

    def __init__(self, source: Source, count: int):
        count = min(count, len(source))
        ends = np.arange(count + 1) * len(source) // max(count, 1)
        drawn = generator(0, SAMPLE, 0, 0).integers(0, np.diff(ends))
        super().__init__(source, (ends[:-1] + drawn).tolist())
