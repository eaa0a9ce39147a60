"""Finds pictures and their annotation files in a directory, and reads the latter."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from jaxprune.data.folder import image_files
from jaxprune.errors import UserError


def existing_directory(path: str) -> Path:
    """Returns `path` with `~` expanded.

    Raises:
      UserError: It is not a directory.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise UserError(f"The folder of annotated pictures {path!r} does not exist.")
    return root


def annotation_directory(root: Path, name: str, defaults: tuple[str, ...]) -> Path:
    """Returns the directory in `root` that holds the annotations.

    Args:
      root: The data set's directory.
      name: Name of the annotation directory; "" for the first of `defaults` that exists.
      defaults: The names that the format commonly uses.

    Raises:
      UserError: There is no such directory.
    """
    for candidate in (name,) if name else defaults:
        if (root / candidate).is_dir():
            return root / candidate
    wanted = repr(name) if name else f"any of {', '.join(defaults)}"
    raise UserError(f"{root} has no directory {wanted} with annotations: name it with annotations=.")


def annotated_pictures(root: Path, annotations: Path, suffix: str) -> list[str]:
    """Returns the pictures that have an annotation file of the same name.

    Pictures are looked for in `root/images`, `root/JPEGImages` or, if neither exists, in `root` itself.

    Args:
      root: The data set's directory.
      annotations: Directory of the annotation files.
      suffix: Of the annotation files, such as ".txt".

    Raises:
      UserError: There are none, or two of them would share a file.
    """
    pictures = next((root / name for name in ("images", "JPEGImages") if (root / name).is_dir()), root)
    stems = {entry.stem for entry in annotations.iterdir() if entry.suffix == suffix}
    found = [file for file in image_files(pictures) if Path(file).stem in stems and Path(file).parent != annotations]
    if not found:
        raise UserError(f"No picture in {pictures} has a {suffix} file of the same name in {annotations}.")
    owner: dict[str, str] = {}
    for file in found:
        if (other := owner.setdefault(Path(file).stem, file)) != file:
            raise UserError(
                f"{other} and {file} have one annotation file between them, {annotations / Path(file).stem}{suffix}: "
                "give the pictures different names."
            )
    return found


@contextlib.contextmanager
def reading(file: Path | str) -> Iterator[None]:
    """Turns what goes wrong while an annotation file is read into one line that names it.

    Raises:
      UserError: Something did.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # parsers and decoders raise all sorts of things at all sorts of damage
        raise UserError(f"The annotation {file} cannot be read: {error or type(error).__name__}.") from error
