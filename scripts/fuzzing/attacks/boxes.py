"""Boxes in YOLO's and VOC's formats, damaged: boxes of numbers in the order of their ends, or one short line."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from attacks import Case
from attacks.mutations import damaged
from attacks.objects import are_sound
from jaxprune.data.annotations import open_annotations
from jaxprune.data.objects.voc import VocObjects
from jaxprune.data.objects.yolo import YoloObjects

_SHAPE = (12, 16)
_WORDS = ("nan", "inf", "-1", "1e308", "1e30", "0", "2", "9" * 400, "x", "", "0x1", "\u0661", "1_0", "\x1b[2J", "1,5")
_YOLO = "0 0.5 0.5 0.5 0.5\n1 0.25 0.25 0.5 0.5\n0 0.1 0.1 0.9 0.1 0.9 0.9\n"
_OBJECT = "<object><name>{}</name><bndbox><xmin>{}</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax></bndbox></object>"
_VOC = f"<annotation><filename>a.png</filename>{_OBJECT.format('cat', 3)}{_OBJECT.format('dog', 1)}</annotation>"
_BOMB = '<!DOCTYPE a [<!ENTITY a "{}">{}]><annotation>&j;</annotation>'.format(
    "x" * 100, "".join(f'<!ENTITY {b} "{f"&{a};" * 100}">' for a, b in zip("abcdefghi", "bcdefghij", strict=True))
)
_ELEMENTS = (
    *("<bndbox/>", "<object/>", "<name/>", "<xmin>nan</xmin>", "<xmin/>", "<!-- -->", "<?x?>", "]]>", "&amp;", "&x;"),
    *(
        "<object>" * 3000,
        "<name>" + "x" * 5000 + "</name>",
        "<name>\u202e</name>",
        '<!DOCTYPE a SYSTEM "file:///dev/zero">',
    ),
)


def _pictures(folder: Path) -> None:
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (*_SHAPE, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(folder / "a.png")


def beside_yolo(folder: Path) -> None:
    """Writes what lies beside a text file of boxes."""
    _pictures(folder / "images")
    (folder / "labels").mkdir(exist_ok=True)
    (folder / "classes.txt").write_text("cat\ndog\n")


def beside_voc(folder: Path) -> None:
    """Writes what lies beside an XML file of boxes."""
    _pictures(folder / "JPEGImages")
    (folder / "Annotations").mkdir(exist_ok=True)


def yolo_seeds() -> list[bytes]:
    """A whole text file."""
    return [_YOLO.encode()]


def voc_seeds() -> list[bytes]:
    """A whole XML file."""
    return [_VOC.encode()]


def read_yolo(folder: Path) -> bool:
    """Reads text files as objects and as regions; whether both are sound."""
    return are_sound(YoloObjects(folder), "bitmaps") and _regions("yolo", folder)


def read_voc(folder: Path) -> bool:
    """Reads XML files as objects and as regions; whether both are sound."""
    return are_sound(VocObjects(folder)) and _regions("voc", folder)


def yolo(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields text files with other numbers, lines and bytes."""
    beside_yolo(folder)
    rng, file = random.Random(seed), folder / "labels" / "a.txt"
    for _ in range(count):
        if rng.random() < 0.6:
            lines = [line.split(" ") for line in _YOLO.splitlines()]
            words = rng.choice(lines)
            words[rng.randrange(len(words))] = damage = rng.choice((*_WORDS, " ".join(["0.5"] * 4000)))
            data = "\n".join(map(" ".join, lines)).encode(errors="replace")
        else:
            data, damage = damaged(_YOLO.encode(), rng), "bytes"
        file.write_bytes(data)
        yield Case(damage, lambda: read_yolo(folder))


def voc(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields XML files with other numbers, elements, entities and bytes."""
    beside_voc(folder)
    rng, file = random.Random(seed), folder / "Annotations" / "a.xml"
    for _ in range(count):
        change = rng.random()
        if change < 0.3:
            damage = rng.choice(_WORDS)
            data = _VOC.replace(rng.choice((">3<", ">2<", ">9<", ">8<", ">cat<")), f">{damage}<", 1).encode()
        elif change < 0.6:
            place = rng.choice([index for index, letter in enumerate(_VOC) if letter == "<"])
            damage = rng.choice(_ELEMENTS)
            data = (_VOC[:place] + damage + _VOC[place:]).encode()
        elif change < 0.62:
            data, damage = _BOMB.encode(), "entities of entities"
        else:
            data, damage = damaged(_VOC.encode(), rng), "bytes"
        file.write_bytes(data)
        yield Case(damage[:60], lambda: read_voc(folder))


def _regions(kind: str, folder: Path) -> bool:
    annotated = open_annotations(kind, path=str(folder))
    regions = [region for index in range(len(annotated)) for region in annotated[index].regions.items()]
    return all(isinstance(name, str) and pixels.shape == _SHAPE and pixels.dtype == bool for name, pixels in regions)
