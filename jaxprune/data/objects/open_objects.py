"""Opens images with objects by the name of their format: built-in scenes, COCO, YOLO or PASCAL VOC."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxprune.data.annotations.class_names import CLASSES_TXT, DATA_YAML
from jaxprune.data.annotations.files import existing_directory
from jaxprune.data.folder import SPLITS
from jaxprune.data.objects.base import ObjectFiles
from jaxprune.data.objects.coco import CocoObjects
from jaxprune.data.objects.scenes import SceneObjects
from jaxprune.data.objects.voc import VocObjects
from jaxprune.data.objects.yolo import YoloObjects
from jaxprune.errors import UserError, require_options, unknown
from jaxprune.files import listing, read_text
from jaxprune.ops.host_random import host_generator

ANNOTATIONS = "annotations/instances_{split}.json"
TRAIN = "train"  # of the parts that a directory without splits is divided into


def open_objects(source: str = "scenes", /, *, split: str, **options: Any) -> Any:
    """Opens a source of images with objects; see `objects.base.ObjectFiles` for its examples.

    >>> len(open_objects("scenes", split="test", num_examples=5, image_size=32))
    5

    Args:
      source: "scenes" (options num_examples, image_size, seed), "coco" (path, annotations, images, with_objects),
        "yolo" (path, classes, held_out, held_out_seed) or "voc" (path, held_out, held_out_seed).
      split: of COCO the word in the names of its directory and its file (`train2017`); of VOC a list in
        `ImageSets/Main`; of YOLO a directory with `images` and `labels`, or one inside both. YOLO and VOC directories
        without any are divided: "train" is what is not held out.
      **options: options of that source.

    Raises:
      UserError: the source or an option is unknown, or there is no such split, or its annotations cannot be read.
    """
    if source not in SOURCES:
        raise unknown("source of objects", source, SOURCES)
    arguments = [name for name in inspect.signature(SOURCES[source]).parameters if name != "split"]
    require_options(f"The source of objects {source!r}", options, arguments)
    return SOURCES[source](split=split, **options)


def _open_scenes(
    num_examples: int = 10_000, image_size: int | tuple[int, int] = 64, seed: int = 0, *, split: str
) -> SceneObjects:
    return SceneObjects(num_examples, image_size, seed, split)


def _open_coco(
    path: str,
    *,
    split: str,
    annotations: str = ANNOTATIONS,
    images: str = "{split}",
    with_objects: bool = False,
) -> CocoObjects:
    top = existing_directory(path)
    place = lambda pattern: top / pattern.replace("{split}", split)
    return CocoObjects(place(images), place(annotations), with_objects=with_objects)


def _open_voc(path: str, *, split: str, held_out: float = 0.2, held_out_seed: int = 0) -> ObjectFiles:
    top = existing_directory(path)
    lists = sorted(file.stem for file in (top / "ImageSets" / "Main").glob("*.txt"))
    everything = VocObjects(top)  # classes that only the other splits have are classes too
    if not lists:
        return _part(everything, split, held_out, held_out_seed)
    if split not in lists:
        raise UserError(f"{path} has no list ImageSets/Main/{split}.txt: choose one of {', '.join(lists)}.")
    names = read_text(top / "ImageSets" / "Main" / f"{split}.txt").split()
    return VocObjects(top, everything.class_names, names)


def _open_yolo(
    path: str, *, split: str, classes: str = "", held_out: float = 0.2, held_out_seed: int = 0
) -> ObjectFiles:
    top = existing_directory(path)
    beside = next((top / name for name in (CLASSES_TXT, DATA_YAML) if (top / name).is_file()), "")
    classes = classes or str(beside)
    if (top / split).is_dir():
        return YoloObjects(top / split, classes=classes)
    if (top / "labels" / split).is_dir():
        return YoloObjects(top, f"labels/{split}", classes)
    splits = sorted(entry.name for folder in (top, top / "labels") if folder.is_dir() for entry in _parts(folder))
    if splits:
        raise UserError(f"{path} has no split {split!r}: choose one of {', '.join(splits)}.")
    return _part(YoloObjects(top, classes=classes), split, held_out, held_out_seed)


def _parts(folder: Path) -> list[Path]:
    """The directories of a folder that hold a split."""
    inside = [entry for entry in listing(folder) if entry.is_dir()]
    return [entry for entry in inside if folder.name == "labels" or (entry / "labels").is_dir()]


def _part(source: ObjectFiles, split: str, share: float, seed: int) -> ObjectFiles:
    """The images of a source that are not held out ("train"), or those that are; at least one in each.

    Raises:
      UserError: there is one image, the share is not between 0 and 1, or the split is none of `folder.SPLITS`.
    """
    if split not in SPLITS:
        raise UserError(
            f"{source.name} has no split {split!r}: it is divided, and its parts are called {', '.join(SPLITS)}."
        )
    if not 0 < share < 1:
        raise UserError(f"held_out={share} is not a share of the images: give a number between 0 and 1, such as 0.2.")
    count = len(source)
    if count < 2:
        raise UserError(f"{source.name} has one image, which cannot be divided: give more, or splits of their own.")
    held = min(max(round(share * count), 1), count - 1)
    order = host_generator(seed).permutation(count)
    return selected(source, sorted((order[held:] if split == TRAIN else order[:held]).tolist()), split)


def selected(source: ObjectFiles, places: Sequence[int], split: str) -> ObjectFiles:
    """Some images of a source, renumbered.

    Args:
      places: their indices.
      split: of the name in messages.
    """
    files = [source.path(place) for place in places]
    return ObjectFiles(f"{source.name}/{split}", source.class_names, files, lambda index: source.objects(places[index]))


SOURCES = {"scenes": _open_scenes, "coco": _open_coco, "yolo": _open_yolo, "voc": _open_voc}
