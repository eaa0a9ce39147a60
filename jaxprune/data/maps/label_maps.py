"""How the files of label maps are read: classes, colours, values without a class."""

import dataclasses
import os
from collections.abc import Sequence

import numpy as np
from jaxtyping import Shaped, UInt8

from jaxprune.data.annotations.scene_parse150_classes import SCENE_PARSE150_CLASSES
from jaxprune.errors import UserError, shortened
from jaxprune.files import as_path, read_text
from jaxprune.ops.label_maps import IGNORED, reduce_zero_label

KNOWN = {"scene_parse150": SCENE_PARSE150_CLASSES}
Colour = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class LabelMaps:
    """Turns stored values, or colours, into classes from 0 and `IGNORED` (255).

    >>> rules = LabelMaps(("road", "car"), ignore=(11,))
    >>> rules(np.array([[0, 1, 11, 255]], np.uint8)).tolist()
    [[0, 1, 255, 255]]

    Attributes:
      class_names: in the order of the classes.
      palette: the colour of each class where files hold colours; pictures of results are drawn in them too.
      ignore: stored values without a class, besides 255; for colours the numbers of their rows in the palette.
      reduce_zero_label: the stored value 0 has no class either, and v is class v - 1 (ADE20K).

    Raises:
      UserError: there are no classes, or too many for 8 bits, or not one colour for each.
    """

    class_names: tuple[str, ...]
    palette: tuple[Colour, ...] = ()
    ignore: tuple[int, ...] = ()
    reduce_zero_label: bool = False

    def __post_init__(self):
        if not 0 < len(self.class_names) < IGNORED:
            raise UserError(f"There are {len(self.class_names)} classes: give 1 to {IGNORED - 1}.")
        if self.palette and len(self.palette) != len(self.class_names):
            raise UserError(
                f"There are {len(self.palette)} colours for {len(self.class_names)} classes: give each one, or none."
            )

    def __call__(self, stored: Shaped[np.ndarray, "h w *c"]) -> UInt8[np.ndarray, "h w"]:
        """Returns the class of each pixel.

        Args:
          stored: numbers (h, w), or colours (h, w, 3).

        Raises:
          ValueError: a number or a colour is not a class.
        """
        numbers = self._numbers(stored) if stored.ndim == 3 else stored
        void = np.isin(numbers, (IGNORED, *self.ignore))
        if self.reduce_zero_label:
            numbers = reduce_zero_label(np.asarray(numbers, np.uint16))
            void |= numbers == IGNORED
        beyond = numbers[~void & ((numbers < 0) | (numbers >= len(self.class_names)))]
        if beyond.size:
            shift = int(self.reduce_zero_label)
            raise ValueError(
                f"the value {int(beyond[0]) + shift} is none of the {len(self.class_names)} classes: give all classes, "
                "or the values without a class by ignore="
            )
        return np.where(void, IGNORED, numbers).astype(np.uint8)

    def _numbers(self, colours: np.ndarray) -> np.ndarray:
        if not self.palette:
            if (colours == colours[..., :1]).all():
                return colours[..., 0]
            raise ValueError("it has colours instead of class numbers: give a file of classes with their colours")
        codes, of_classes = _codes(colours), _codes(np.array(self.palette))
        order = np.argsort(of_classes, kind="stable")
        places = order[np.minimum(np.searchsorted(of_classes[order], codes), len(of_classes) - 1)]
        if (wrong := of_classes[places] != codes).any():
            row, column = np.argwhere(wrong)[0]
            raise ValueError(f"the colour {tuple(colours[row, column].tolist())} is none of the palette's")
        return places


def _codes(colours: np.ndarray) -> np.ndarray:
    red, green, blue = np.moveaxis(colours[..., :3].astype(np.int64), -1, 0)
    return (red * 256 + green) * 256 + blue


def read_classes(path: str | os.PathLike) -> tuple[tuple[str, ...], tuple[Colour, ...]]:
    """Returns the classes of a text file, and their colours if it has them.

    Args:
      path: a file with one class a line, in order: a name, or a name and red, green and blue from 0 to 255, separated
        by blanks, commas or tabs; a line that begins with # is left out. Or "scene_parse150", the classes of ADE20K.

    Raises:
      UserError: the file cannot be read, or only some lines have colours.
    """
    if str(path) in KNOWN:
        return KNOWN[str(path)], ()
    try:
        lines = [line.strip() for line in read_text(as_path(path)).splitlines()]
    except (OSError, ValueError) as error:
        raise UserError(f"The file of classes {path} cannot be read: {shortened(error)}.") from error
    rows = [_parsed(line) for line in lines if line and not line.startswith("#")]
    colours = tuple(colour for _, colour in rows if colour is not None)
    if not rows or len(colours) not in (0, len(rows)):
        raise UserError(
            f"{path} has {len(rows)} classes and {len(colours)} colours: write a class a line, a name alone or with "
            "red, green and blue from 0 to 255, all in the same way."
        )
    return tuple(name for name, _ in rows), colours


def _parsed(line: str) -> tuple[str, Colour | None]:
    words = line.replace(",", " ").replace("\t", " ").split()
    last: Sequence[str] = words[-3:]
    if len(words) > 3 and all(word.isdigit() and int(word) < 256 for word in last):
        red, green, blue = map(int, last)
        return " ".join(words[:-3]), (red, green, blue)
    return line, None
