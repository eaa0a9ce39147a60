"""Maps the class numbers in annotation files to class names."""

from collections.abc import Mapping
from pathlib import Path

from jaxprune.data.annotations.coco_classes import COCO_NUMBERS
from jaxprune.data.annotations.scene_parse150_classes import SCENE_PARSE150_CLASSES
from jaxprune.data.annotations.voc_classes import VOC_CLASSES
from jaxprune.errors import UserError, shortened
from jaxprune.files import read_text

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
    path = Path(classes).expanduser() if classes else root / "classes.txt"
    if not classes and not path.is_file():
        return {}
    try:
        lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"The file of class names {path} cannot be read: {shortened(error)}.") from error
    return dict(_parse_line(line, number) for number, line in enumerate(lines, first))


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
