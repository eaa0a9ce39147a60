"""YOLO's layout: a text file of boxes or polygons for each image."""

import os
from pathlib import Path

import numpy as np

from jaxprune.data import decode
from jaxprune.data.annotations.class_names import class_name, yolo_class_names
from jaxprune.data.annotations.files import annotated_pictures, annotation_directory, existing_directory, reading
from jaxprune.data.annotations.yolo import read_lines
from jaxprune.data.objects.base import Object, ObjectFiles, checked_box, checked_polygon
from jaxprune.files import read_bytes


class YoloObjects(ObjectFiles):
    """Images with text files of `class x y width height`, or `class x1 y1 x2 y2 …`, in fractions of the image's size.

    An image without a file shows no objects.

    Args:
      root, annotations, classes: see `data.annotations.yolo.open_yolo`.

    Raises:
      UserError: there are no annotated images, or the class names cannot be read. Reading an image's objects also
        raises it if they are malformed.
    """

    def __init__(self, root: str | os.PathLike, annotations: str = "", classes: str = ""):
        top = existing_directory(str(root))
        folder = annotation_directory(top, annotations, ("labels", "boxes_yolo", "boxes"))
        names = yolo_class_names(top, classes)
        files = annotated_pictures(top, folder, ".txt", backgrounds=_beside(top, folder))
        ordered = [class_name(names, number, str(root)) for number in sorted(names)]
        labels = {number: label for label, number in enumerate(sorted(names))}

        def read(index: int) -> list[Object]:
            file = folder / f"{Path(files[index]).stem}.txt"
            with reading(file):
                with decode.open_image(read_bytes(files[index], decode.MAX_BYTES)) as picture:
                    size = np.array([picture.width, picture.height], float)
                lines = read_lines(file, names) if file.is_file() else []
                return [_object(labels[kind], values, size) for kind, values in lines]

        super().__init__(str(root), ordered, files, read)


def _beside(root: Path, folder: Path) -> Path | None:
    """The directory of the pictures of a directory of text files, all of which count; None where that is not known."""
    inside = folder.relative_to(root).parts[1:]
    pictures = root / "images"
    if not inside:
        return pictures if pictures.is_dir() else root
    return pictures.joinpath(*inside) if pictures.joinpath(*inside).is_dir() else None


def _object(label: int, values: list[float], size: np.ndarray) -> Object:
    if len(values) == 4:
        x, y, width, height = np.asarray(values) * np.tile(size, 2)
        return Object(checked_box((x - width / 2, y - height / 2, x + width / 2, y + height / 2)), label)
    polygon = checked_polygon(np.asarray(values) * np.resize(size, len(values)))
    x, y = polygon[0::2], polygon[1::2]
    return Object(checked_box((x.min(), y.min(), x.max(), y.max())), label, (polygon,))
