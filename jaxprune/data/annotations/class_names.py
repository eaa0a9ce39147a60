"""Maps the class numbers in annotation files to class names."""

import logging
from collections.abc import Mapping
from pathlib import Path

import yaml

from jaxprune.data.annotations.coco_classes import COCO_CLASSES, COCO_NUMBERS
from jaxprune.data.annotations.files import reading
from jaxprune.data.annotations.scene_parse150_classes import SCENE_PARSE150_CLASSES
from jaxprune.data.annotations.voc_classes import VOC_CLASSES
from jaxprune.errors import UserError, shortened
from jaxprune.files import read_text

_log = logging.getLogger(__name__)

CLASSES_TXT, DATA_YAML = "classes.txt", "data.yaml"

# {data set: {number: name}}, for the numbers that these data sets use.
KNOWN: dict[str, dict[int, str]] = {
    "coco": COCO_NUMBERS,
    "voc": dict(enumerate(VOC_CLASSES, 1)),
    "scene_parse150": dict(enumerate(SCENE_PARSE150_CLASSES, 1)),
}


def read_class_names(root: Path, classes: str, first: int = 1) -> dict[int, str]:
    """Returns {number: name}, or {} if no names are specified.

    Args:
      root: the data set's directory.
      classes: one of `KNOWN` for the numbers that this data set uses, or the path of a text file with one class per
        line: a name, or a number and a name. "" for `root/classes.txt`, if it exists.
      first: number of the first line, for lines without a number.

    Raises:
      UserError: the file cannot be read.
    """
    if classes in KNOWN:
        return KNOWN[classes]
    path = Path(classes).expanduser() if classes else root / CLASSES_TXT
    if not classes and not path.is_file():
        return {}
    try:
        lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"The file of class names {path} cannot be read: {shortened(error)}.") from error
    return dict(_parse_line(line, number) for number, line in enumerate(lines, first))


def yolo_class_names(root: Path, classes: str) -> dict[int, str]:
    """Returns {number: name} of YOLO's files.

    Args:
      root: the data set's directory.
      classes: as for `read_class_names`, or the path of a `.yaml` file with `names`; "" for `classes.txt` or
        `data.yaml` in `root`. Without any, numbers are taken for COCO's 80 classes, which is logged.

    Raises:
      UserError: the file cannot be read.
    """
    path = Path(classes).expanduser() if classes else root / DATA_YAML
    if path.suffix in (".yaml", ".yml") and (classes or (path.is_file() and not (root / CLASSES_TXT).is_file())):
        return _of_yaml(path)
    if names := read_class_names(root, classes, first=0):
        return names
    _log.warning(
        "%s has neither %s nor %s: its class numbers are taken for COCO's. Other names are given by data.classes.",
        root, CLASSES_TXT, DATA_YAML,
    )  # fmt: skip
    return dict(enumerate(COCO_CLASSES))


def _of_yaml(path: Path) -> dict[int, str]:
    with reading(path):
        content = yaml.safe_load(read_text(path))
    names = content.get("names") if isinstance(content, dict) else None
    numbered = dict(enumerate(names)) if isinstance(names, list) else names
    if not isinstance(numbered, dict) or not numbered:
        raise UserError(f"{path} has no names: give a list of them, or a name for each number.")
    for number, name in numbered.items():
        if type(number) is not int or number < 0 or not isinstance(name, str | int | float):
            raise UserError(f"names in {path} have {shortened(f'{number!r}: {name!r}')}: give a text for each number.")
    return {number: str(name) for number, name in numbered.items()}


def class_name(names: Mapping[int, str], number: int, source: str) -> str:
    """Returns the name of class `number`.

    Args:
      names: {number: name}.
      number: the class.
      source: what the error message calls the data set.

    Raises:
      UserError: the class has no name.
    """
    if number in names:
        return names[number]
    raise UserError(f"{source} has a region of class {number}, which has no name: give classes=.")


def _parse_line(line: str, default_number: int) -> tuple[int, str]:
    head, _, rest = line.partition(" ")
    return (int(head), rest.strip()) if head.isdigit() and rest.strip() else (default_number, line)
