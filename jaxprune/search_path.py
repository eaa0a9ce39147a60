"""Keeps the current folder out of the folders that Python searches for modules: data sets are unpacked there.

This module imports nothing that could itself lie there.
"""

import os
import sys

_PACKAGE = os.path.dirname(os.path.abspath(__file__))


def leave_out_working_directory() -> None:
    """Removes the current folder, which `python -m` searches first; call it before anything else is imported.

    An empty entry of PYTHONPATH means the current folder too, and is removed as well. The folder stays if PYTHONPATH
    names it, or if a package is installed from it. Modules of this package are found without it.
    """
    try:
        working_directory = os.getcwd()
    except OSError:  # it was removed
        return
    named = [] if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "").split(os.pathsep)
    first = 0 if sys.flags.safe_path else 1  # the folder of `python -m`; PYTHONPATH follows, then what is installed
    last = first + len(named)
    is_named = any(entry and os.path.abspath(entry) == working_directory for entry in named)
    kept = [entry for entry in sys.path[first:last] if entry not in ("", working_directory) or is_named]
    sys.path[:last] = [entry for entry in sys.path[:first] if entry not in ("", working_directory)] + kept


def with_package(path: list[str]) -> list[str]:
    """Returns `path` such that this package is found on it, last where it is not installed.

    Args:
      path: folders, as in `sys.path`.
    """
    home = os.path.dirname(_PACKAGE)
    for index, entry in enumerate(path):
        package = os.path.join(entry, os.path.basename(_PACKAGE))
        if os.path.isfile(os.path.join(package, "__init__.py")):
            return path if os.path.samefile(package, _PACKAGE) else [*path[:index], home, *path[index:]]
    return [*path, home]
