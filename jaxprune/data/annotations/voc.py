"""PASCAL VOC's layout: an XML file of boxes or a mask for each picture."""

import xml.etree.ElementTree
from pathlib import Path

from jaxprune.data.annotations.base import OBJECT, AnnotatedFiles, Annotations, Regions, add_region
from jaxprune.data.annotations.class_names import read_class_names
from jaxprune.data.annotations.files import annotated_pictures, annotation_directory, existing_directory, reading
from jaxprune.data.annotations.masks import open_masks
from jaxprune.data.annotations.shapes import box
from jaxprune.errors import unknown
from jaxprune.files import TEXT_LIMIT, read_bytes

Corners = tuple[float, float, float, float]


def open_voc(path: str, *, kind: str = "boxes") -> Annotations:
    """Opens a directory with `JPEGImages/`, `Annotations/*.xml` and `SegmentationClass/*.png`.

    Args:
      path: the directory.
      kind: "boxes" to read `Annotations`, "masks" to read `SegmentationClass`.

    Raises:
      UserError: `kind` is unknown, or there are no annotated pictures.
    """
    root = existing_directory(path)
    if kind == "masks":
        return open_masks(path, annotations="SegmentationClass", classes="" if read_class_names(root, "") else "voc")
    if kind != "boxes":
        raise unknown("kind of VOC annotation", kind, ("boxes", "masks"))
    folder = annotation_directory(root, "", ("Annotations",))
    files = annotated_pictures(root, folder, ".xml")

    def read_regions(index: int, shape: tuple[int, int]) -> Regions:
        file = folder / f"{Path(files[index]).stem}.xml"
        regions: Regions = {}
        with reading(file):
            for name, (left, top, right, bottom) in read_boxes(file):
                add_region(regions, name, box((top, left, bottom, right), shape))
        return regions

    return AnnotatedFiles(str(path), files, read_regions)


def read_boxes(file: Path) -> list[tuple[str, Corners]]:
    """Returns the class and the x0, y0, x1, y1 of each object of an XML file, in pixels from 0, ends exclusive.

    Raises:
      Exception: whatever parsers raise for damaged files, and `ValueError` for an object without a box.
    """
    boxes = []
    for item in xml.etree.ElementTree.fromstring(read_bytes(file, TEXT_LIMIT)).iter("object"):
        sides = [item.findtext(f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
        if None in sides:
            raise ValueError("an object has no bndbox of xmin, ymin, xmax and ymax")
        # Pixel coordinates start at 1, and both ends are inclusive.
        x0, y0, x1, y1 = (float(str(side)) for side in sides)
        boxes.append((item.findtext("name", OBJECT), (x0 - 1, y0 - 1, x1, y1)))
    return boxes
