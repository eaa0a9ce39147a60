"""Arrays in .npz files that a run stores to resume: a damaged file is as good as none."""

import logging
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np

from jaxprune.errors import shortened
from jaxprune.evaluate.stored_rows import start_of
from jaxprune.files import open_regular

_log = logging.getLogger(__name__)


def read_stored(path: Path) -> dict[str, np.ndarray] | None:
    """Returns the arrays of a file; None if there is no such file, or with a warning if it is damaged."""
    try:
        with open_regular(path) as file, np.load(file) as arrays:
            require_whole(arrays.zip, file)
            return dict(arrays)
    except FileNotFoundError:
        return None
    # Damaged archives raise many kinds of exceptions, of zipfile, of its decompressors and of numpy.
    except Exception as error:
        warn_of_damage(path, error)
        return None


def require_whole(archive: zipfile.ZipFile | None, file: BinaryIO) -> None:
    """Checks that the members that an archive lists follow on one another from its start, as they were written.

    Raises:
      BadZipFile: they do not, so that some are not listed, or it is not an archive at all.
    """
    end = 0
    for member in archive.infolist() if archive else ():
        if member.header_offset != end:
            break
        end = start_of(file, member) + member.compress_size
    if archive is None or end != archive.start_dir:
        raise zipfile.BadZipFile("its directory does not list all that it holds")


def warn_of_damage(path: Path, error: Exception) -> None:
    """Logs that a file is damaged and what it holds will be computed again."""
    why = shortened(error if isinstance(error, zipfile.BadZipFile) else f"{type(error).__name__}: {error}")
    _log.warning("%s is damaged (%s): it is left out, and computed again.", path, why)
