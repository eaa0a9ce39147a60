"""The built-in scenes as annotated images: one object each, with its exact mask."""

from jaxprune.data.annotations.base import Annotated, Annotations
from jaxprune.data.scenes import CLASS_NAMES, Scenes


class SceneAnnotations:
    """Scenes whose only region is their object.

    Args:
      scenes: the scenes.
    """

    def __init__(self, scenes: Scenes):
        self.name, self._scenes = scenes.name, scenes

    def __len__(self) -> int:
        return len(self._scenes)

    def __getitem__(self, index: int) -> Annotated:
        example = self._scenes[index]
        return Annotated(example["image"], {CLASS_NAMES[example["label"]]: example["mask"]})


def open_scenes(*, num_images: int = 500, image_size: int = 64, seed: int = 0) -> Annotations:
    """Returns scenes of the test split.

    Args:
      num_images: number of scenes.
      image_size: side in pixels.
      seed: seed of the scenes.
    """
    return SceneAnnotations(Scenes(num_images, image_size, seed, split="test"))
