"""YOLO's layout: a text file of boxes or polygons for each picture."""

from collections.abc import Mapping
from pathlib import Path

from jaxprune.data.annotations.base import AnnotatedFiles, Annotations, Regions, add_region
from jaxprune.data.annotations.class_names import class_name, yolo_class_names
from jaxprune.data.annotations.files import annotated_pictures, annotation_directory, existing_directory, reading
from jaxprune.data.annotations.shapes import box, polygon
from jaxprune.errors import UserError
from jaxprune.files import read_text


def open_yolo(path: str, *, annotations: str = "", classes: str = "") -> Annotations:
    """Opens a directory with `images/` and a directory of text files of the same names, such as `coco128`.

    Each line of a text file is a region: `class x y width height`, a box by its centre, or
    `class x1 y1 x2 y2 x3 y3 …`, a polygon. Coordinates are fractions of the picture's size.

    Args:
      path: the directory.
      annotations: name of the directory of text files; by default the first of labels/, boxes_yolo/ and boxes/.
      classes: "coco" or "voc" for the numbers that these data sets use, or the path of a text file with one class per
        line: a name, counted from 0, or a number and a name, or of a `.yaml` file with `names`. By default
        `classes.txt` or `data.yaml` in `path` or, if there is none, COCO's 80 classes, which is logged.

    Raises:
      UserError: there are no annotated pictures, or the class names cannot be read. Reading an example also raises it
        if its annotation is malformed.
    """
    root = existing_directory(path)
    folder = annotation_directory(root, annotations, ("labels", "boxes_yolo", "boxes"))
    names = yolo_class_names(root, classes)
    files = annotated_pictures(root, folder, ".txt")

    def read_regions(index: int, shape: tuple[int, int]) -> Regions:
        file = folder / f"{Path(files[index]).stem}.txt"
        regions: Regions = {}
        with reading(file):
            for number, (kind, values) in enumerate(read_lines(file, names)):
                if len(values) != 4 and (len(values) < 6 or len(values) % 2):
                    raise UserError(
                        f"Line {number + 1} for {files[index]} has {len(values)} numbers after the class: a box has "
                        "4, a polygon an even number from 6 on."
                    )
                if len(values) == 4:
                    x, y, width, height = values
                    pixels = box((y - height / 2, x - width / 2, y + height / 2, x + width / 2), shape, relative=True)
                else:
                    pixels = polygon(values, shape, relative=True)
                add_region(regions, names[kind], pixels)
        return regions

    return AnnotatedFiles(str(path), files, read_regions)


def read_lines(file: Path, names: Mapping[int, str]) -> list[tuple[int, list[float]]]:
    """Returns the class and the coordinates of each line of a text file.

    Args:
      names: {number of a class: name}.

    Raises:
      OSError, ValueError: the file cannot be read, or a word is not a number, or the first one no whole number.
      UserError: a class has no name.
    """
    lines = []
    for number, line in enumerate(filter(str.strip, read_text(file).splitlines())):
        kind, *values = map(float, line.split())
        if not kind.is_integer():
            raise ValueError(f"line {number + 1} has the class {kind:g}, which is not a whole number")
        class_name(names, int(kind), str(file))
        lines.append((int(kind), values))
    return lines
