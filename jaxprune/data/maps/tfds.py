"""TFDS data sets with label maps, such as `scene_parse150` (ADE20K), read without TensorFlow."""

import functools
import os
from typing import Any

import numpy as np

from jaxprune.data.broken_examples import Unreadable
from jaxprune.data.maps.folder import decode_map
from jaxprune.data.maps.label_maps import LabelMaps
from jaxprune.data.source import Example
from jaxprune.data.tfds_source import Tfds
from jaxprune.errors import shortened


class TfdsMaps(Tfds):
    """One split of a TFDS data set of images and label maps.

    `source[i]` is a dict: `image` uint8 (h, w, 3), `label_map` uint8 (h, w), `label` -1, `index` i.

    Args:
      name, split, data_dir, image_key: see `tfds_source.Tfds`.
      rules: how the values of maps are read.
      map_key: the feature that holds the map, an image.

    Raises:
      UserError: the set is unknown or not prepared, or lacks the split or the features.
    """

    def __init__(
        self,
        name: str = "",
        *,
        split: str = "train",
        rules: LabelMaps,
        data_dir: str | os.PathLike | None = None,
        image_key: str = "image",
        map_key: str = "annotation",
    ):
        super().__init__(name, split=split, data_dir=data_dir, labels=False, image_key=image_key, exif=False)
        options: Any = {"split": split, "rules": rules, "data_dir": data_dir}
        self._reopen = functools.partial(TfdsMaps, name, **options, image_key=image_key, map_key=map_key)
        self.rules, self._map_key = rules, map_key
        self.class_names, self.num_classes = rules.class_names, len(rules.class_names)
        self.leave_encoded(map_key)

    def __getitem__(self, index: int) -> Example:
        example, record = super().__getitem__(index), self._record(index)
        try:
            stored = record[self._map_key]
            encoded = isinstance(stored, bytes)
            label_map = decode_map(stored, self.rules) if encoded else self.rules(np.squeeze(np.asarray(stored)))
        except Exception as error:  # decoders raise many kinds of exceptions on damaged data
            raise Unreadable(f"{self.name}[{index}]", shortened(error), "label map") from error
        if label_map.shape != example["image"].shape[:2]:
            raise Unreadable(f"{self.name}[{index}]", "map and image differ in size", "label map")
        return {**example, "label_map": label_map}
