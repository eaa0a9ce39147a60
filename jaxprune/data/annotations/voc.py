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
            for item in xml.etree.ElementTree.fromstring(read_bytes(file, TEXT_LIMIT)).iter("object"):
                corners = [float(item.findtext(f"bndbox/{side}", "0")) for side in ("ymin", "xmin", "ymax", "xmax")]
                # VOC's pixel coordinates start at 1, and both ends are inclusive.
                top, left, bottom, right = corners
                add_region(regions, item.findtext("name", OBJECT), box((top - 1, left - 1, bottom, right), shape))
        return regions

    return AnnotatedFiles(str(path), files, read_regions)
