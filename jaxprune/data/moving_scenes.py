"""Moving scenes, to try out video networks: a camera moves over a built-in scene."""

import numpy as np

from jaxprune.data.clips import Views
from jaxprune.data.rng import CAMERA, generator
from jaxprune.data.scenes import CLASS_NAMES, Scenes
from jaxprune.data.source import Example

LENGTH = 48  # frames of a video
MARGIN = 0.25  # by which a scene is larger than a frame, as a fraction of the frame's side


class MovingScenes:
    """Ten classes of composed scenes (`Scenes`), each seen by a camera on a straight path from a corner or side.

    `scenes[i]` is a dict: `image`, a clip or several views of it (see `Views`), `label` int32, `index` i.

    Args:
      views: reads the clips; frames have the size of its crop.
      num_examples, seed, split: as for `Scenes`.
    """

    class_names, num_classes = CLASS_NAMES, len(CLASS_NAMES)

    def __init__(self, views: Views, num_examples: int = 10_000, seed: int = 0, split: str = "train"):
        self._margins = [max(1, round(MARGIN * side)) for side in views.preprocessing.img_size]
        (height, width), (down, across) = views.preprocessing.img_size, self._margins
        self._scenes = Scenes(num_examples, (height + down, width + across), seed, split)
        self.name, self.broken, self.num_frames = f"moving {self._scenes.name}", {}, views.num_frames
        self._views, self._seed = views, seed

    def __len__(self) -> int:
        return len(self._scenes)

    def __getitem__(self, index: int) -> Example:
        scene = self._scenes[index]
        start, end = self._way(int(scene["index"]))
        numbers, frames = self._views.frames(LENGTH), {}
        height, width = self._views.preprocessing.img_size
        for number in np.unique(numbers).tolist():
            top, left = np.round(start + (end - start) * (number / (LENGTH - 1))).astype(int)
            frames[number] = self._views.cropped(scene["image"][top : top + height, left : left + width])
        return {"image": self._views.of(frames, numbers), "label": scene["label"], "index": scene["index"]}

    def _way(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The first and last position of the camera, (top, left): opposite each other on the border of its range."""
        down, across = generator(self._seed, CAMERA, 0, index).integers(0, 3, 2) - 1
        direction = np.array([down, across]) if down or across else np.array([0, 1])
        middle = np.array(self._margins) / 2
        return middle - direction * middle, middle + direction * middle
