"""A small sample of a source, selected examples of it, and its images alone."""

from collections.abc import Sequence

import numpy as np

from jaxprune.data.rng import SAMPLE, generator
from jaxprune.data.source import Example, Source, example_name, frames_of, turned

_NONE = -1  # the number of an example that stands for a broken one


class Picked:
    """Selected examples of a source, in a given order, renumbered.

    Where the source is in memory and holds another example in place of a broken one, that example has the number -1, so
    that no evaluation counts it.

    Args:
      source: the examples to choose from.
      places: their indices in the source.
    """

    def __init__(self, source: Source, places: Sequence[int]):
        self.name, self.class_names, self.num_classes = source.name, source.class_names, source.num_classes
        self.broken, self.exif, self.num_frames = source.broken, turned(source), frames_of(source)
        self._source, self._places = source, [int(place) for place in places]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the examples in messages."""
        return tuple(example_name(self._source, place) for place in self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Example:
        number, place = range(len(self))[index], self._places[index]
        example = self._source[place]
        return {**example, "index": np.int32(number if example["index"] == place else _NONE)}


class Pictures(Picked):
    """The images of a source alone, without what is known of them.

    >>> from jaxprune.data.scenes import Scenes
    >>> sorted(Pictures(Scenes(split="train", num_examples=2, image_size=32))[0])
    ['image', 'index', 'label']

    Args:
      source: examples with an "image".
    """

    def __init__(self, source: Source):
        super().__init__(source, range(len(source)))
        self.class_names, self.num_classes = (), 0

    def __getitem__(self, index: int) -> Example:
        example = super().__getitem__(index)
        return {"image": example["image"], "label": np.int32(-1), "index": example["index"]}


class Sample(Picked):
    """A fixed sample of a source, renumbered: one example of each of `count` equal stretches of it.

    A sample is thus representative both for a source sorted by class and for one with alternating classes, where every
    second example would only cover half of the classes.

    Args:
      source: the examples to choose from.
      count: number of examples; all, if the source has fewer.
    """

    def __init__(self, source: Source, count: int):
        count = min(count, len(source))
        ends = np.arange(count + 1) * len(source) // max(count, 1)
        offsets = generator(0, SAMPLE, 0, 0).integers(0, np.diff(ends))
        super().__init__(source, (ends[:-1] + offsets).tolist())
