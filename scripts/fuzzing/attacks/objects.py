"""COCO's objects, damaged: objects that training can read, or one short line."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attacks import Case
from attacks.mutations import VALUES, damaged_content
from jaxprune.data.broken_examples import read_or_next
from jaxprune.data.joint.detection import Jitter, TrainObjects
from jaxprune.data.objects.open_objects import open_objects

SHAPE = (12, 16)
NAMES = ("a", "b", "c")
_VALUES = (
    *VALUES,
    [10**9, 10**9, 10**9, 10**9],
    [0, 0, -5, 3],
    [0, 0, float("nan"), 1],
    [[1e30, 0, 0, 1e30, 5, 5]],
    [[1, 1, 2, 2]],
    {"size": [12, 16], "counts": [10**12]},
    {"size": [2**15, 2**15], "counts": [2**30]},
    {"size": [12, 16], "counts": "~" * 40},
)


def _images(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        pixels = np.random.default_rng(0).integers(0, 256, (*SHAPE, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")


def _content() -> dict[str, Any]:
    """Annotations with a polygon, run lengths, a crowd, and an image without objects."""
    runs = {"size": list(SHAPE), "counts": [10, 20, 30, 132]}
    shapes = ([[1, 1, 8, 1, 8, 8, 1, 8]], runs, runs)
    return {
        "images": [
            {"id": place, "file_name": f"{name}.png", "height": SHAPE[0], "width": SHAPE[1]}
            for place, name in enumerate(NAMES)
        ],
        "categories": [{"id": 17, "name": "cat"}, {"id": 3, "name": "car"}],
        "annotations": [
            {"id": place, "image_id": place // 2, "category_id": 17, "bbox": [1, 1, 7, 7], "segmentation": shape}
            | {"iscrowd": int(place == 2)}
            for place, shape in enumerate(shapes)
        ],
    }


def beside_coco(folder: Path) -> None:
    """Writes what lies beside a file of annotations."""
    _images(folder / "train")
    (folder / "annotations").mkdir(exist_ok=True)


def seeds() -> list[bytes]:
    """A whole file of annotations."""
    return [json.dumps(_content()).encode()]


def read_coco(folder: Path) -> bool:
    """Reads the annotations of a folder; whether all objects are sound."""
    return are_sound(open_objects("coco", split="train", path=str(folder)), "bitmaps")


def coco(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields damaged `instances_*.json`."""
    beside_coco(folder)
    content = _content()
    rng, path = random.Random(seed), folder / "annotations/instances_train.json"
    for _ in range(count):
        data, damage = damaged_content(content, rng, _VALUES)
        path.write_bytes(data)
        yield Case(damage, lambda: read_coco(folder))


def are_sound(source: Any, masks: str = "none") -> bool:
    """Whether all examples, and what training makes of them, are finite and inside their images.

    Args:
      source: images with objects.
      masks: how training gets them, see `TrainObjects`.
    """
    way = TrainObjects((16, 16), masks=masks, num_objects=8)
    return all(_is_sound(source, way, index) for index in range(len(source)))


def _is_sound(source: Any, way: TrainObjects, index: int) -> bool:
    example = read_or_next(source, index)
    boxes, classes = example["boxes"], example["classes"]
    columns = way.jittered(example, Jitter(True, 1.0, 0.0))
    inside = (columns["boxes"] >= 0).all() and (columns["boxes"] <= 16).all()
    valid_classes = ((classes >= 0) & (classes < source.num_classes)).all()
    return bool(np.isfinite(boxes).all() and (boxes[:, 2:] >= boxes[:, :2]).all() and valid_classes and inside)
