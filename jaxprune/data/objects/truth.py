"""What detections of a source are compared with: its objects as COCO's content, and the ids of images and classes."""

from typing import Any, NamedTuple

from jaxprune.data import decode
from jaxprune.data.objects.base import coco_content
from jaxprune.data.objects.coco import CocoObjects
from jaxprune.data.objects.scenes import SceneObjects
from jaxprune.files import read_bytes


class Truth(NamedTuple):
    """The annotations of a source.

    Attributes:
      content: as in COCO's `instances_*.json`.
      image_ids: of each image, by its index.
      category_ids: of each class.
    """

    content: dict[str, Any]
    image_ids: list[Any]
    category_ids: list[Any]

    @classmethod
    def of(cls, source: Any) -> "Truth":
        """Returns the annotations of a source of objects; COCO's own file as it is.

        >>> from jaxprune.data.objects.scenes import SceneObjects
        >>> [entry["category_id"] for entry in Truth.of(SceneObjects(3, 32)).content["annotations"]]
        [1, 2, 3]

        Raises:
          UserError: an annotation cannot be read.
        """
        if isinstance(source, CocoObjects):
            return cls(source.content, source.image_ids, source.category_ids)
        count = len(source)
        sizes = (
            [source.size] * count if isinstance(source, SceneObjects) else [_size(source.path(i)) for i in range(count)]
        )
        content = coco_content(source, sizes)
        return cls(content, list(range(1, count + 1)), [entry["id"] for entry in content["categories"]])

    def of_images(self, indices: list[int]) -> dict[str, Any]:
        """Returns the content for some of the images only, by their indices."""
        ids = {self.image_ids[index] for index in indices}
        if len(ids) == len(self.content["images"]):
            return self.content
        images = [entry for entry in self.content["images"] if entry["id"] in ids]
        annotations = [entry for entry in self.content["annotations"] if entry["image_id"] in ids]
        return {**self.content, "images": images, "annotations": annotations}


def _size(file: str) -> tuple[int, int]:
    """Height and width in a file's header; of a broken one, which is left out later, none."""
    try:
        with decode.open_image(read_bytes(file, decode.MAX_BYTES)) as picture:
            return picture.height, picture.width
    except Exception:  # Pillow raises many kinds of errors
        return 0, 0
