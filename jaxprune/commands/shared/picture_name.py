"""The name of what a command draws of a picture: another one for another picture, network or setting."""

import json
import zlib
from pathlib import Path
from typing import Any

_LONGEST = 60  # letters of a picture's name


def picture_name(task: str, image: str, *about: Any) -> str:
    """Returns the name of a section of the report and of the files that belong to it.

    Args:
      image: the picture's path.
      about: what else the drawing depends on.
    """
    path = Path(image).expanduser()
    return f"{task}-{path.stem[:_LONGEST]}-{zlib.crc32(json.dumps([str(path.resolve()), *about]).encode()):08x}"
