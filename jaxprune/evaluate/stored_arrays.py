"""Arrays in .npz files that a run stores to resume: a damaged file is as good as none."""

import logging
import zipfile
from pathlib import Path

import numpy as np

from jaxprune.errors import shortened
from jaxprune.files import open_regular

_log = logging.getLogger(__name__)


def read_stored(path: Path) -> dict[str, np.ndarray] | None:
    """Returns the arrays of a file; None if there is no such file, or with a warning if it is damaged."""
    try:
        with open_regular(path) as file, np.load(file) as arrays:
            return dict(arrays)
    except FileNotFoundError:
        return None
    # Damaged archives raise many kinds of exceptions, of zipfile, of its decompressors and of numpy.
    except Exception as error:
        warn_of_damage(path, error)
        return None


def warn_of_damage(path: Path, error: Exception) -> None:
    """Logs that a file is damaged and what it holds will be computed again."""
    why = shortened(error if isinstance(error, zipfile.BadZipFile) else f"{type(error).__name__}: {error}")
    _log.warning("%s is damaged (%s): it is left out, and computed again.", path, why)
