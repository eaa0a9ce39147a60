"""PASCAL VOC's layout: an XML file of boxes for each image (Everingham et al., 2010)."""

import os
from collections.abc import Sequence
from pathlib import Path

from jaxprune.data.annotations.files import annotated_pictures, annotation_directory, existing_directory, reading
from jaxprune.data.annotations.voc import Corners, read_boxes
from jaxprune.data.objects.base import Object, ObjectFiles, checked_box
from jaxprune.errors import UserError


class VocObjects(ObjectFiles):
    """Images of `JPEGImages/` with the boxes of `Annotations/*.xml`.

    Args:
      root: the directory.
      class_names: in the order of the labels; by default those of all files, sorted.
      names: stems of the images to use, such as the lines of `ImageSets/Main/train.txt`; by default all.

    Raises:
      UserError: there are no annotated images, a file is malformed or a class unknown.
    """

    def __init__(
        self, root: str | os.PathLike, class_names: Sequence[str] | None = None, names: Sequence[str] | None = None
    ):
        top = existing_directory(str(root))
        folder = annotation_directory(top, "", ("Annotations",))
        files = annotated_pictures(top, folder, ".xml")
        if names is not None:
            by_stem = {Path(file).stem: file for file in files}
            if missing := [name for name in names if name not in by_stem]:
                raise UserError(f"{root} has no annotated image {missing[0]!r}, one of {len(missing)}: leave them out.")
            files = [by_stem[name] for name in names]
        read = lambda index: _boxes(folder / f"{Path(files[index]).stem}.xml")
        if class_names is None:
            class_names = sorted({name for index in range(len(files)) for name, _ in read(index)})
        labels = {name: label for label, name in enumerate(class_names)}

        def read_objects(index: int) -> list[Object]:
            objects = []
            for name, corners in read(index):
                if name not in labels:
                    raise UserError(f"{files[index]} has an object of the class {name!r}: add it to class_names.")
                objects.append(Object(corners, labels[name]))
            return objects

        super().__init__(str(root), class_names, files, read_objects)


def _boxes(file: Path) -> list[tuple[str, Corners]]:
    with reading(file):
        return [(name, checked_box(corners)) for name, corners in read_boxes(file)]
