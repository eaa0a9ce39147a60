"""A small sample of a source."""

import numpy as np

from jaxprune.data.source import Example, Source, example_name, turned


class Sample:
    """Evenly spaced examples of a source, renumbered; representative even if the source is sorted by class.

    Args:
      source: The examples to choose from.
      count: How many to choose; all, if the source has fewer.
    """

    def __init__(self, source: Source, count: int):
        self.name, self.class_names, self.num_classes = source.name, source.class_names, source.num_classes
        self.broken, self.exif = source.broken, turned(source)
        self._source, self._count = source, min(count, len(source))

    @property
    def names(self) -> tuple[str, ...]:
        """What messages call the examples."""
        return tuple(example_name(self._source, self._place(index)) for index in range(self._count))

    def _place(self, index: int) -> int:
        return index * len(self._source) // self._count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Example:
        return {**self._source[self._place(index)], "index": np.int32(index)}
