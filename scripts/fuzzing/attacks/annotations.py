"""COCO's annotation files, damaged: regions of the pictures, or one short line."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from attacks import Case
from attacks.mutations import VALUES, damaged_content
from jaxprune.data.annotations import open_annotations

_SHAPE = (12, 16)
_RUNS = {"size": list(_SHAPE), "counts": [10, 20, 30, 132]}
_VALUES = (
    *VALUES,
    [10**9, 10**9, 10**9, 10**9],
    [0, 0, 1e308, 1e308],
    [[1e30, 0, 0, 1e30, 5, 5]],
    [[1, 1]],
    "/dev/zero",
)


def coco(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields damaged `instances_*.json`, each read as boxes or as masks."""
    pictures = folder / "train"
    pictures.mkdir()
    for name in "ab":
        pixels = np.random.default_rng(0).integers(0, 256, (*_SHAPE, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(pictures / f"{name}.png")
    polygon = [[1, 1, 8, 1, 8, 8, 1, 8]]
    entries = [
        {
            "id": 1,
            "image_id": 7,
            "category_id": 17,
            "bbox": [6, 4, 6, 4],
            "area": 24,
            "iscrowd": 1,
            "segmentation": _RUNS,
        },
        {
            "id": 2,
            "image_id": 8,
            "category_id": 3,
            "bbox": [0, 0, 5, 5],
            "area": 25,
            "iscrowd": 0,
            "segmentation": polygon,
        },
    ]
    content = {
        "info": {"year": 2017},
        "images": [{"id": 7, "file_name": "a.png"}, {"id": 8, "file_name": "b.png"}],
        "categories": [{"id": 17, "name": "cat"}, {"id": 3, "name": "car"}],
        "annotations": entries,
    }
    rng, path = random.Random(seed), folder / "instances.json"
    for number in range(count):
        data, damage = damaged_content(content, rng, _VALUES)
        path.write_bytes(data)
        kind = ("boxes", "masks")[number % 2]
        yield Case((kind, damage), lambda kind=kind: _read(pictures, path, kind))


def _read(pictures: Path, path: Path, kind: str) -> bool:
    annotated = open_annotations("coco", path=str(pictures), annotations=str(path), kind=kind)
    regions = [region for index in range(len(annotated)) for region in annotated[index].regions.items()]
    return all(isinstance(name, str) and pixels.shape == _SHAPE and pixels.dtype == bool for name, pixels in regions)
