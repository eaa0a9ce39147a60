"""COCO's layout: one JSON file with the objects of all images (Lin et al., 2014)."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxprune.data.annotations.files import picture_inside
from jaxprune.data.objects.base import Object, ObjectFiles, checked_box, checked_polygon, checked_runs, refused
from jaxprune.errors import UserError, quoted, shortened
from jaxprune.files import read_bytes

_MAX_BYTES = 2**31


class CocoObjects(ObjectFiles):
    """Images with the objects of `instances_*.json`.

    Attributes:
      image_ids: the id of each image, in order.
      category_ids: the id of each class, ascending; labels count them from 0.
      content: the JSON file's content, for `measures.average_precision`.

    Args:
      root: directory of the images.
      annotations: path of the JSON file.
      with_objects: leaves out images without an object that is not a crowd, as published for training.

    Raises:
      UserError: a file is missing or no COCO annotation, or an object is none: the first one is named.
    """

    def __init__(self, root: str | os.PathLike, annotations: str | os.PathLike, *, with_objects: bool = False):
        directory = Path(root).expanduser()
        if not directory.is_dir():
            raise UserError(f"The folder of images {str(root)!r} does not exist.")
        content = _read(Path(annotations).expanduser())
        categories = sorted(_entries(content, "categories", ("id", "name"), annotations), key=lambda entry: entry["id"])
        images = _entries(content, "images", ("id", "file_name"), annotations)
        self.category_ids = [entry["id"] for entry in categories]
        labels = {number: label for label, number in enumerate(self.category_ids)}
        sizes = {entry["id"]: _size(entry) for entry in images}
        if len(sizes) < len(images) or len(labels) < len(categories):
            raise UserError(f"{annotations} has several images or categories of one id: give each its own.")
        objects: dict[Any, list[Object]] = {number: [] for number in sizes}
        for place, entry in enumerate(_entries(content, "annotations", ("image_id", "category_id"), annotations)):
            where = f"{quoted(entry.get('id', place))} in {annotations}"
            if entry["image_id"] not in objects:
                raise refused(where, ValueError(f"there is no image {quoted(entry['image_id'])}"))
            if entry["category_id"] not in labels:
                raise refused(where, ValueError(f"there is no category {quoted(entry['category_id'])}"))
            try:
                annotated = _object(entry, labels[entry["category_id"]], sizes[entry["image_id"]])
            except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
                raise refused(where, error) from None
            objects[entry["image_id"]].append(annotated)
        used = [
            entry
            for entry in images
            if not with_objects or any(not annotated.crowd for annotated in objects[entry["id"]])
        ]
        if not used:
            raise UserError(f"{annotations} has no images{' with objects' if with_objects else ''}.")
        self.image_ids, self.content = [entry["id"] for entry in used], content
        files = [picture_inside(directory, str(entry["file_name"]), annotations) for entry in used]
        names = [str(entry["name"]) for entry in categories]
        super().__init__(str(root), names, files, lambda index: objects[self.image_ids[index]])


def _read(path: Path) -> Any:
    try:
        content = json.loads(read_bytes(path, _MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as COCO's annotations ({shortened(repr(error))}).") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} cannot be read as COCO's annotations: it holds no mapping.")
    return content


def _entries(content: Mapping[str, Any], name: str, keys: tuple[str, ...], source: Any) -> list[dict[str, Any]]:
    entries = content.get(name)
    if not isinstance(entries, list):
        raise UserError(f"{source} cannot be read as COCO's annotations: it has no list {name!r}.")
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict) or any(key not in entry for key in keys):
            raise UserError(f"{source}: entry {place} of {name!r} lacks {' or '.join(keys)}.")
        for key in keys:
            if not isinstance(entry[key], (int, str)) or isinstance(entry[key], bool):
                raise UserError(f"{source}: {key} of entry {place} of {name!r} is neither a number nor a text.")
        if isinstance(entry.get("id", 0), str):  # average precision counts by numbers
            raise UserError(
                f"{source}: the id {quoted(entry['id'])} of entry {place} of {name!r} is a text: number the {name}, as "
                "COCO does, and use the numbers in the annotations."
            )
    return entries


def _size(entry: Mapping[str, Any]) -> tuple[int, int] | None:
    height, width = entry.get("height"), entry.get("width")
    return (height, width) if isinstance(height, int) and isinstance(width, int) else None


def _object(entry: Mapping[str, Any], label: int, size: tuple[int, int] | None) -> Object:
    segmentation = entry.get("segmentation")
    crowd = entry.get("iscrowd", 0) in (1, True)
    polygons, runs = (), None
    if isinstance(segmentation, Mapping):
        runs = checked_runs(segmentation, size)
    elif segmentation:
        polygons = tuple(checked_polygon(points) for points in segmentation)
    if len(entry["bbox"]) != 4:
        raise ValueError(f"its box has {len(entry['bbox'])} numbers and not four")
    x, y, width, height = (float(number) for number in entry["bbox"])
    return Object(checked_box((x, y, x + width, y + height)), label, polygons, runs, crowd)
