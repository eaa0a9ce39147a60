"""COCO's layout: one JSON file with the boxes and segmentations of all pictures."""

import json
from pathlib import Path

from jaxprune.data.annotations.base import AnnotatedFiles, Annotations, Regions, add_region
from jaxprune.data.annotations.files import existing_directory, picture_inside, reading
from jaxprune.data.annotations.shapes import box, segmentation
from jaxprune.errors import UserError, shortened, unknown
from jaxprune.files import as_path, read_bytes


def open_coco(path: str, *, annotations: str, kind: str = "boxes") -> Annotations:
    """Opens a directory of pictures with COCO's `instances_*.json`.

    Args:
      path: the directory of pictures.
      annotations: path of the JSON file.
      kind: "boxes", or "masks" for the segmentations: polygons or uncompressed run lengths.

    Raises:
      UserError: `kind` is unknown, the directory does not exist, or the JSON file cannot be read or names a picture
        outside of the directory.
    """
    if kind not in ("boxes", "masks"):
        raise unknown("kind of COCO annotation", kind, ("boxes", "masks"))
    root = existing_directory(path)
    try:
        content = json.loads(read_bytes(Path(annotations).expanduser()))
        names = {entry["id"]: entry["name"] for entry in content["categories"]}
        if unnamed := [name for name in names.values() if not isinstance(name, str)]:
            raise TypeError(f"a category is named {unnamed[0]!r}")
        place = lambda name: str(as_path(picture_inside(root, name, annotations)))
        pictures = [(entry["id"], place(entry["file_name"])) for entry in content["images"]]
        entries: dict[int, list[dict]] = {number: [] for number, _ in pictures}
        for entry in content["annotations"]:
            entries.setdefault(entry["image_id"], []).append(entry)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{annotations} cannot be read as COCO's annotations ({shortened(repr(error))}): give instances_*.json."
        ) from None

    def read_regions(index: int, shape: tuple[int, int]) -> Regions:
        regions: Regions = {}
        number, file = pictures[index]
        with reading(f"{annotations} for {file}"):
            for entry in entries[number]:
                if kind == "masks":
                    pixels = segmentation(entry["segmentation"], shape)
                else:
                    left, top, width, height = entry["bbox"]
                    pixels = box((top, left, top + height, left + width), shape)
                add_region(regions, names[entry["category_id"]], pixels)
        return regions

    return AnnotatedFiles(str(path), [file for _, file in pictures], read_regions)
