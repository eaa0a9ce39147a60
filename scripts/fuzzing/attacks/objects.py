"""Images with objects in three layouts, damaged: objects that training can read, or one short line."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attacks import Case
from attacks.mutations import VALUES, damaged, damaged_json, mutated
from jaxprune.data.broken import read_or_next
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
_LINES = (
    "0 nan .5 .5 .5",
    "0 .5 .5 -1 .5",
    "99 .5 .5 .5 .5",
    "0 1e30 .5 .5 .5",
    "0 .1 .1 .9 .9",
    "0",
    "\x1b[2J",
    "0 " * 9999,
)
_ENTITIES = '<!DOCTYPE a [<!ENTITY b "x"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]><annotation>&c;</annotation>'


def _images(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        pixels = np.random.default_rng(0).integers(0, 256, (*SHAPE, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")


def coco(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields damaged `instances_*.json`, with a polygon, run lengths, a crowd, and an image without objects."""
    _images(folder / "train")
    (folder / "annotations").mkdir()
    runs = {"size": list(SHAPE), "counts": [10, 20, 30, 132]}
    shapes = ([[1, 1, 8, 1, 8, 8, 1, 8]], runs, runs)
    content = {
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
    rng, path = random.Random(seed), folder / "annotations/instances_train.json"
    text = json.dumps(content).encode()
    for _ in range(count):
        if rng.random() < 0.75:
            values, what = mutated(content, rng, _VALUES)
            path.write_text(json.dumps(values))
        else:
            data, what = damaged_json(text, rng)
            path.write_bytes(data)
        yield Case(what, lambda: _read("coco", folder))


def yolo(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields damaged text files of boxes and polygons."""
    _images(folder / "images/train")
    (folder / "labels/train").mkdir(parents=True)
    (folder / "classes.txt").write_text("cat\ndog\n")
    text = "0 0.5 0.5 0.4 0.4\n1 0.1 0.1 0.9 0.1 0.9 0.9\n"
    files = [folder / "labels/train" / f"{name}.txt" for name in NAMES]
    yield from _of_texts("yolo", folder, files, text, _LINES, count, seed)


def voc(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields damaged XML files of boxes."""
    _images(folder / "JPEGImages")
    (folder / "Annotations").mkdir()
    (folder / "ImageSets/Main").mkdir(parents=True)
    (folder / "ImageSets/Main/train.txt").write_text("\n".join(NAMES))
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>8</ymax></bndbox>"
    text = f"<annotation><object><name>cat</name><difficult>0</difficult>{box}</object></annotation>"
    lines = (_ENTITIES, "<a>" * 10_000, text.replace(">9<", ">nan<"), text.replace(">9<", ">1e30<"), "")
    files = [folder / "Annotations" / f"{name}.xml" for name in NAMES]
    yield from _of_texts("voc", folder, files, text, lines, count, seed)


SOURCES: dict[str, Callable[[Path, int, int], Iterator[Case]]] = {"COCO": coco, "YOLO": yolo, "VOC": voc}


def _of_texts(
    kind: str, folder: Path, files: list[Path], text: str, hostile: tuple[str, ...], count: int, seed: int
) -> Iterator[Case]:
    rng = random.Random(seed)
    for path in files:
        path.write_text(text)
    for _ in range(count):
        path = rng.choice(files)
        if rng.random() < 0.6:
            data, what = damaged(text.encode(), rng), "bytes"
        else:
            line = rng.choice(hostile)
            data, what = line.encode(), line[:40]
        path.write_bytes(data)
        yield Case((path.name, what, data[:60]), lambda: _read(kind, folder))
        path.write_text(text)


def _read(kind: str, folder: Path) -> bool:
    source: Any = open_objects(kind, split="train", path=str(folder))
    way = TrainObjects((16, 16), masks="none" if kind == "voc" else "bitmaps", num_objects=8)
    return all(_is_sound(source, way, index) for index in range(len(source)))


def _is_sound(source: Any, way: TrainObjects, index: int) -> bool:
    """Whether an example, and what training makes of it, is finite and inside its image."""
    example = read_or_next(source, index)
    boxes, classes = example["boxes"], example["classes"]
    columns = way.jittered(example, Jitter(True, 1.0, 0.0))
    inside = (columns["boxes"] >= 0).all() and (columns["boxes"] <= 16).all()
    known = ((classes >= 0) & (classes < source.num_classes)).all()
    return bool(np.isfinite(boxes).all() and (boxes[:, 2:] >= boxes[:, :2]).all() and known and inside)
