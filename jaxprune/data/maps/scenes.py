"""The built-in scenes with the class of each pixel: the wall, or the shape of the object."""

import numpy as np

from jaxprune.data.scenes import CLASS_NAMES, Scenes
from jaxprune.data.source import Example

WALL = "wall"


class SceneMaps(Scenes):
    """Built-in scenes for segmentation: class 0 is the wall, with its smudges, and the shapes follow.

    `scenes[i]` is a dict: `image` uint8 (h, w, 3), `label_map` uint8 (h, w), `label` -1, `index` i. The arguments are
    those of `Scenes`, and so are the pictures.

    >>> SceneMaps(4, 32)[3]["label_map"].max()
    np.uint8(4)
    """

    class_names = (WALL, *CLASS_NAMES)
    num_classes = len(class_names)

    def __getitem__(self, index: int) -> Example:
        example = self.scene(index)
        label_map = np.where(example.pop("mask"), example["label"] + 1, 0).astype(np.uint8)
        return {**example, "label": np.int32(-1), "label_map": label_map}
