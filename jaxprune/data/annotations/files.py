"""Finds pictures and their annotation files in a directory, and reads the latter."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from jaxprune.data.folder import image_files
from jaxprune.errors import PLACE, UserError, quoted, shortened
from jaxprune.files import listing

_log = logging.getLogger(__name__)


def existing_directory(path: str) -> Path:
    """Returns `path` with `~` expanded.

    Raises:
      UserError: it is not a directory.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise UserError(f"The folder of annotated pictures {path!r} does not exist.")
    return root


def annotation_directory(root: Path, name: str, defaults: tuple[str, ...]) -> Path:
    """Returns the directory in `root` that holds the annotations.

    Args:
      root: the data set's directory.
      name: name of the annotation directory; "" for the first of `defaults` that exists.
      defaults: the names that the format commonly uses.

    Raises:
      UserError: there is no such directory.
    """
    for candidate in (name,) if name else defaults:
        if (root / candidate).is_dir():
            return root / candidate
    expected = repr(name) if name else f"any of {', '.join(defaults)}"
    raise UserError(f"{root} has no directory {expected} with annotations: name it with annotations=.")


def annotated_pictures(root: Path, annotations: Path, suffix: str, *, backgrounds: Path | None = None) -> list[str]:
    """Returns the pictures that have an annotation file of the same name.

    Pictures are looked for in `root/images`, `root/JPEGImages` or, if neither exists, in `root` itself.

    Args:
      root: the data set's directory.
      annotations: directory of the annotation files.
      suffix: extension of the annotation files, such as ".txt".
      backgrounds: a directory all of whose pictures count, also without such a file.

    Raises:
      UserError: there are no such pictures, or two of them share an annotation file.
    """
    pictures = next((root / name for name in ("images", "JPEGImages") if (root / name).is_dir()), root)
    stems = {entry.stem for entry in listing(annotations) if entry.suffix == suffix}
    annotated = [
        file for file in image_files(pictures) if Path(file).stem in stems and Path(file).parent != annotations
    ]
    if not annotated:
        raise UserError(f"No picture in {pictures} has a {suffix} file of the same name in {annotations}.")
    owner: dict[str, str] = {}
    for file in annotated:
        if (first := owner.setdefault(Path(file).stem, file)) != file:
            raise UserError(
                f"{first} and {file} share one annotation file, {annotations / Path(file).stem}{suffix}: "
                "give the pictures different names."
            )
    if backgrounds is None:
        return annotated
    bare = sorted({file for file in image_files(backgrounds) if Path(file).parent != annotations} - set(annotated))
    if bare:
        _log.info("%d pictures in %s have no %s file: they show no objects.", len(bare), backgrounds, suffix)
    return sorted([*annotated, *bare])


def picture_inside(directory: Path, name: str, source: str | os.PathLike) -> str:
    """Returns the path of a picture that an annotation file names.

    Args:
      directory: of the pictures.
      name: the picture's name, relative to it.
      source: the annotation file, for messages.

    Raises:
      UserError: it is not inside of the directory, or no file can have such a name.
    """
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"{source} names the image {quoted(name)}, which is not inside of {directory}.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise UserError(f"{source} names the image {quoted(name)}, which no file can be called.") from None
    return str(directory / path)


@contextlib.contextmanager
def reading(file: Path | str) -> Iterator[None]:
    """Turns any error while reading an annotation file into a one-line error that names the file.

    Raises:
      UserError: there was an error.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # parsers and decoders raise many kinds of exceptions on damaged files
        why = shortened(str(error) or type(error).__name__)
        raise UserError(f"The annotation {shortened(file, PLACE)} cannot be read: {why}.") from error
