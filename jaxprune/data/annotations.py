"""Images with regions, each of a class: boxes, polygons and masks, from the layouts in which people have them.

A source is numbered like any other; example `i` is an `Annotated` image. What a region is does not matter further on: a
box, a polygon and a mask are all the pixels inside.
"""

import functools
import inspect
import json
import os
import xml.etree.ElementTree
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from PIL import Image, ImageDraw

from jaxprune.data import images
from jaxprune.data.folder import image_files
from jaxprune.data.scenes import CLASS_NAMES, Scenes
from jaxprune.errors import UserError, nearest, unknown

OBJECT = "object"  # the class of regions that have no other

# The 80 classes of COCO's boxes, by YOLO's numbers from 0.
COCO_CLASSES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet",
    "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven", "toaster", "sink", "refrigerator",
    "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip
VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
# COCO's own numbers of these classes, which leave some out; its masks have them, and the polygons of `coco128`.
COCO_NUMBERS: dict[int, str] = dict(
    zip(sorted(set(range(1, 91)) - {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}), COCO_CLASSES, strict=True)
)
# Classes that ImageNet-1k does not have (LTRP, B): a ranker trained there has not learnt them.
UNSEEN = {
    "coco": (
        "person", "traffic light", "fire hydrant", "stop sign", "giraffe", "frisbee", "surfboard", "fork", "sandwich",
        "carrot", "toothbrush", "sink", "potted plant",
    ),
    "voc": ("person",),
}  # fmt: skip


class Annotated(NamedTuple):
    """An image and what is where in it.

    Attributes:
      image: uint8 (h, w, 3).
      regions: {class: bool (h, w), True on the pixels of all its regions}.
    """

    image: np.ndarray
    regions: dict[str, np.ndarray]


class Annotations(Protocol):
    """Numbered annotated images."""

    name: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Annotated: ...


class Listed:
    """A source of which each example is a file and a function that finds its regions.

    Args:
      name: what messages call it.
      files: the pictures.
      regions: (number of a picture, its (height, width)) -> {class: pixels}.
    """

    def __init__(self, name: str, files: list[str], regions: Callable[[int, tuple[int, int]], dict[str, np.ndarray]]):
        self.name, self.files, self._regions = name, files, regions

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Annotated:
        image = read_picture(self.files[index])
        return Annotated(image, self._regions(index, image.shape[:2]))


class _Scenes:
    """The built-in scenes: one object of a known form each, with its exact mask."""

    def __init__(self, scenes: Scenes):
        self.name, self._scenes = scenes.name, scenes

    def __len__(self) -> int:
        return len(self._scenes)

    def __getitem__(self, index: int) -> Annotated:
        example = self._scenes[index]
        return Annotated(example["image"], {CLASS_NAMES[example["label"]]: example["mask"]})


def scenes(*, num_images: int = 500, image_size: int = 64, seed: int = 0) -> Annotations:
    """The held-out built-in scenes, whose regions are exact."""
    return _Scenes(Scenes(num_images, image_size, seed, split="test"))


def yolo(path: str, *, annotations: str = "", classes: str = "") -> Annotations:
    """A folder with `images/` and, in another directory, a text file for each of them: YOLO's layout, `coco128`'s.

    Every line is a region: `class x y width height`, the box by its centre, or `class x1 y1 x2 y2 x3 y3 …`, a polygon;
    all relative to the picture.

    Args:
      annotations: the directory with the text files; by default the first of labels/, boxes_yolo/ and boxes/.
      classes: as for `masks`, but from 0 on; by default also COCO's 80 classes.
    """
    root = _directory(path)
    folder = _inside(root, annotations, ("labels", "boxes_yolo", "boxes"))
    names = _names(root, classes, first=0) or dict(enumerate(COCO_CLASSES))
    files = _with_partner(root, folder, ".txt")

    def regions(index: int, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        text = (folder / f"{Path(files[index]).stem}.txt").read_text()
        found: dict[str, np.ndarray] = {}
        for number, line in enumerate(filter(str.strip, text.splitlines())):
            kind, *values = map(float, line.split())
            if len(values) != 4 and (len(values) < 6 or len(values) % 2):
                raise UserError(
                    f"Line {number + 1} for {files[index]} has {len(values)} numbers behind the class: a box has 4, a "
                    "polygon an even number from 6 on."
                )
            pixels = polygon(values, shape, relative=True)
            if len(values) == 4:
                x, y, width, height = values
                pixels = box((y - height / 2, x - width / 2, y + height / 2, x + width / 2), shape, relative=True)
            _add(found, _name(names, int(kind), path), pixels)
        return found

    return Listed(str(path), files, regions)


def masks(path: str, *, annotations: str = "", classes: str = "", void: int = 255) -> Annotations:
    """A folder with `images/` and, in another directory, a mask of the same name for each of them, a PNG.

    A mask's values are classes, 0 is none. One that holds nothing but 0 and 255 marks one class, "object".

    Args:
      annotations: the directory with the masks; by default the first of masks/, semantic_masks/, SegmentationClass/ and
        annotations/.
      classes: "coco" or "voc" for their own numbers, or a file with a line for each class: its name, from 1 on, or its
        number and name. By default the folder's classes.txt; without one a class is called by its number.
      void: the value of pixels that belong to nothing.
    """
    root = _directory(path)
    folder = _inside(root, annotations, ("masks", "semantic_masks", "SegmentationClass", "annotations"))
    names = _names(root, classes)
    files = _with_partner(root, folder, ".png")

    def regions(index: int, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        with Image.open(folder / f"{Path(files[index]).stem}.png") as picture:
            return by_value(np.asarray(picture), names, void, files[index], shape)

    return Listed(str(path), files, regions)


def voc(path: str, *, kind: str = "boxes") -> Annotations:
    """PASCAL VOC's layout: `JPEGImages/` beside `Annotations/*.xml` and `SegmentationClass/*.png`.

    Args:
      kind: "boxes", from the former, or "masks", from the latter.
    """
    root = _directory(path)
    if kind == "masks":
        return masks(path, annotations="SegmentationClass", classes="" if _names(root, "") else "voc")
    if kind != "boxes":
        raise unknown("kind of VOC annotation", kind, ("boxes", "masks"))
    folder = _inside(root, "", ("Annotations",))
    files = _with_partner(root, folder, ".xml")

    def regions(index: int, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        tree = xml.etree.ElementTree.parse(folder / f"{Path(files[index]).stem}.xml")
        found: dict[str, np.ndarray] = {}
        for item in tree.iter("object"):
            corners = [float(item.findtext(f"bndbox/{side}", "0")) for side in ("ymin", "xmin", "ymax", "xmax")]
            # VOC counts pixels from 1, both ends included.
            top, left, bottom, right = corners
            _add(found, item.findtext("name", OBJECT), box((top - 1, left - 1, bottom, right), shape))
        return found

    return Listed(str(path), files, regions)


def coco(path: str, *, annotations: str, kind: str = "boxes") -> Annotations:
    """A directory of pictures with COCO's `instances_*.json`.

    Args:
      annotations: the JSON file.
      kind: "boxes", or "masks" for the polygons and run lengths.
    """
    if kind not in ("boxes", "masks"):
        raise unknown("kind of COCO annotation", kind, ("boxes", "masks"))
    root = _directory(path)
    try:
        content = json.loads(Path(annotations).expanduser().read_text())
        names = {entry["id"]: entry["name"] for entry in content["categories"]}
        pictures = [(entry["id"], str(root / entry["file_name"])) for entry in content["images"]]
        entries: dict[int, list[dict]] = {number: [] for number, _ in pictures}
        for entry in content["annotations"]:
            entries.setdefault(entry["image_id"], []).append(entry)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{annotations} cannot be read as COCO's annotations ({error!r}): give instances_*.json."
        ) from None

    def regions(index: int, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for entry in entries[pictures[index][0]]:
            left, top, width, height = entry["bbox"]
            pixels = box((top, left, top + height, left + width), shape)
            if kind == "masks":
                pixels = segmentation(entry["segmentation"], shape)
            _add(found, names[entry["category_id"]], pixels)
        return found

    return Listed(str(path), [file for _, file in pictures], regions)


class Tfds:
    """A TFDS data set with boxes (`coco/2017`, `voc/2007`) or with masks (`scene_parse150`); nothing is downloaded.

    Args:
      name, split, data_dir: as for the data source "tfds".
    """

    def __init__(self, name: str, *, split: str = "validation", data_dir: str | os.PathLike | None = None):
        from jaxprune.data import tfds_source

        self.name = f"{name}/{split}"
        # What lies prepared under its name needs no code of TFDS, which for some sets needs TensorFlow.
        where = data_dir or os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
        try:
            builder = tfds_source._builder(name, Path(where).expanduser())
        except ModuleNotFoundError as error:
            raise UserError(
                f"TFDS data set {name!r} is not prepared in {where}, and TFDS cannot say more of it without packages "
                "that are not here: prepare it where TensorFlow is (--file_format=array_record), and give data_dir=."
            ) from error
        self._records, features = tfds_source._open(builder, split), builder.info.features
        self._mask = next((key for key in ("annotation", "segmentation_mask") if key in features), None)
        if self._mask is None and "objects" not in features:
            raise UserError(
                f"TFDS data set {name!r} has neither boxes ('objects') nor masks ('annotation', 'segmentation_mask'). "
                f"It has: {', '.join(sorted(features))}."
            )
        labels = None if self._mask else features["objects"].feature["label"]
        self._names = dict(enumerate(getattr(labels, "names", None) or ()))

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Annotated:
        record = self._records[index]
        image = images.to_rgb(record["image"])
        if self._mask:
            values = np.asarray(record[self._mask])
            return Annotated(image, by_value(values[..., 0], {}, 255, self.name, image.shape[:2]))
        found: dict[str, np.ndarray] = {}
        for corners, kind in zip(record["objects"]["bbox"], record["objects"]["label"], strict=True):
            _add(found, _name(self._names, int(kind), self.name), box(corners, image.shape[:2], relative=True))
        return Annotated(image, found)


def tfds(name: str, *, split: str = "validation", data_dir: str = "") -> Annotations:
    """A prepared TFDS data set with boxes (`coco/2017`, `voc/2007`) or masks (`scene_parse150`)."""
    return Tfds(name, split=split, data_dir=data_dir or None)


SOURCES = {"scenes": scenes, "yolo": yolo, "masks": masks, "voc": voc, "coco": coco, "tfds": tfds}


def open_annotations(source: str, /, **options: Any) -> Annotations:
    """Opens annotated images: a function of `SOURCES`, with its options; empty ones are left out.

    Raises:
      UserError: the source or an option is unknown, a needed one is missing, or nothing usable is there.
    """
    if source not in SOURCES:
        raise unknown("source of annotations", source, SOURCES)
    known = inspect.signature(SOURCES[source]).parameters
    given = {name: value for name, value in options.items() if value not in ("", None)}
    for name in given:
        if name not in known:
            raise UserError(f"{source!r} has no option {name!r}.{nearest(name, known)} It has: {', '.join(known)}.")
    for name, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and name not in given:
            raise UserError(f"Annotations of the kind {source!r} need {name}=.")
    opened = SOURCES[source](**given)
    if not len(opened):
        raise UserError(f"{opened.name} holds no annotated pictures.")
    return opened


# --- pixels -------------------------------------------------------------------------------------------------------


def box(corners: Any, shape: tuple[int, int], *, relative: bool = False) -> np.ndarray:
    """Returns the pixels that a box (top, left, bottom, right) touches, bool (h, w)."""
    scale = np.array([*shape, *shape]) if relative else 1.0
    top, left, bottom, right = np.asarray(corners, float) * scale
    inside = np.zeros(shape, bool)
    rows = slice(max(int(np.floor(top + 1e-6)), 0), max(int(np.ceil(bottom - 1e-6)), 0))
    inside[rows, max(int(np.floor(left + 1e-6)), 0) : max(int(np.ceil(right - 1e-6)), 0)] = True
    return inside


def polygon(points: Any, shape: tuple[int, int], *, relative: bool = False) -> np.ndarray:
    """Returns the pixels inside a polygon x1 y1 x2 y2 …, bool (h, w)."""
    corners = np.asarray(points, float).reshape(-1, 2) * (np.array(shape[::-1]) if relative else 1.0)
    canvas = Image.new("1", (shape[1], shape[0]))
    ImageDraw.Draw(canvas).polygon([tuple(corner) for corner in corners.tolist()], fill=1, outline=1)
    return np.array(canvas)


def segmentation(value: Any, shape: tuple[int, int]) -> np.ndarray:
    """Returns the pixels of a COCO segmentation: polygons, or run lengths down the columns."""
    if isinstance(value, Mapping):
        if not isinstance(value["counts"], list):
            raise UserError("Compressed run lengths of COCO cannot be read: use kind='boxes', or uncompressed ones.")
        runs = np.repeat(np.arange(len(value["counts"])) % 2 == 1, value["counts"])
        return runs.reshape(value["size"], order="F")
    return functools.reduce(np.logical_or, (polygon(points, shape) for points in value), np.zeros(shape, bool))


def by_value(
    mask: np.ndarray, names: Mapping[int, str], void: int, what: str, shape: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Returns {class: pixels} of a mask whose values are classes."""
    if mask.shape[:2] != shape:
        raise UserError(f"The mask of {what} is {mask.shape[:2]} and its picture {shape}: they must be of one size.")
    mask = mask if mask.ndim == 2 else mask.max(-1)
    values = [int(value) for value in np.unique(mask) if value]
    if values == [255] or mask.dtype == bool:
        return {OBJECT: mask > 0} if values else {}
    return {names.get(value, str(value)): mask == value for value in values if value != void}


def _add(found: dict[str, np.ndarray], name: str, pixels: np.ndarray) -> None:
    if pixels.any():
        found[name] = found[name] | pixels if name in found else pixels


# --- files --------------------------------------------------------------------------------------------------------


def read_picture(file: str) -> np.ndarray:
    """Returns a picture as uint8 (h, w, 3).

    Raises:
      UserError: it cannot be read.
    """
    try:
        return images.decode(Path(file).read_bytes())
    except (OSError, images.Broken) as error:
        raise UserError(f"Picture {file} cannot be read: {error}.") from error


def _directory(path: str) -> Path:
    root = Path(path).expanduser()
    if not root.is_dir():
        raise UserError(f"The folder of annotated pictures {path!r} does not exist.")
    return root


def _inside(root: Path, given: str, usual: tuple[str, ...]) -> Path:
    for name in (given,) if given else usual:
        if (root / name).is_dir():
            return root / name
    wanted = repr(given) if given else f"any of {', '.join(usual)}"
    raise UserError(f"{root} has no directory {wanted} with annotations: name it with annotations=.")


def _with_partner(root: Path, folder: Path, ending: str) -> list[str]:
    """Returns the pictures of a folder that have an annotation of the same name."""
    pictures = next((root / name for name in ("images", "JPEGImages") if (root / name).is_dir()), root)
    there = {entry.stem for entry in folder.iterdir() if entry.suffix == ending}
    found = [file for file in image_files(pictures) if Path(file).stem in there and Path(file).parent != folder]
    if not found:
        raise UserError(f"No picture in {pictures} has a {ending} file of the same name in {folder}.")
    return found


def _names(root: Path, given: str, first: int = 1) -> dict[int, str]:
    """Returns {number: name} of a file of names, with numbers in front or counted from `first`; {} without a file."""
    if given in ("coco", "voc"):
        return COCO_NUMBERS if given == "coco" else dict(enumerate(VOC_CLASSES, 1))
    path = Path(given).expanduser() if given else root / "classes.txt"
    if not given and not path.is_file():
        return {}
    try:
        lines = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise UserError(f"The file of class names {path} cannot be read: {error}.") from error
    return dict(_numbered(number, line) for number, line in enumerate(lines, first))


def _name(names: Mapping[int, str], number: int, what: str) -> str:
    if number in names:
        return names[number]
    raise UserError(f"{what} has a region of class {number}, which has no name: give classes=.")


def _numbered(number: int, line: str) -> tuple[int, str]:
    head, _, rest = line.partition(" ")
    return (int(head), rest.strip()) if head.isdigit() and rest.strip() else (number, line)
