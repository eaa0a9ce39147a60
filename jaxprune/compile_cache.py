"""A persistent cache of compiled programs, in a directory of bounded size."""

import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxprune.errors import UserError

OFF = "off"
MAX_BYTES = 2 * 2**30
MIN_SECONDS = 1.0  # programs that compile faster than this are not cached

# Of JAX's cache: a program, the time of its last use, which is written behind it, and the lock.
_PROGRAM, _USED, _LOCK = "-cache", "-atime", ".lockfile"
_PATIENCE = 1.0  # seconds

_log = logging.getLogger(__name__)


def default_directory(platform: str = sys.platform, environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the user's cache directory, by the convention of the platform."""
    home = Path.home()
    if environment.get("XDG_CACHE_HOME"):
        return Path(environment["XDG_CACHE_HOME"]) / "jaxprune"
    if platform == "win32":
        return Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local") / "jaxprune" / "Cache"
    return (home / "Library" / "Caches" if platform == "darwin" else home / ".cache") / "jaxprune"


def enable(where: str = "") -> Path | None:
    """Turns on JAX's persistent compilation cache, which evicts the least recently used programs when it is full.

    Args:
      where: a directory, "off", or empty for the user's (`default_directory`), unless JAX is already configured by
        JAX_COMPILATION_CACHE_DIR or JAX_ENABLE_COMPILATION_CACHE.

    Returns:
      The directory in use, or None.

    Raises:
      UserError: the directory cannot be written to.
    """
    if where == OFF:
        jax.config.update("jax_enable_compilation_cache", False)
        return None
    settings: Any = jax.config  # JAX adds its attributes at import time
    if not where and not settings.jax_enable_compilation_cache:
        return None
    if not where and settings.jax_compilation_cache_dir:
        return Path(settings.jax_compilation_cache_dir)
    directory = Path(where).expanduser() if where else default_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        writable = os.access(directory, os.W_OK)
    except OSError:
        writable = False
    if not writable and where:
        raise UserError(f"compile_cache={where} is not a writable directory: give another one, or {OFF}.")
    # JAX needs that package's lock to bound the size.
    if not writable or importlib.util.find_spec("filelock") is None:
        _log.info("Compiled programs are not cached: %s.", "no filelock" if writable else f"{directory} is read-only")
        return None
    _remove_halves(directory)
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_compilation_cache_max_size", MAX_BYTES)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)
    return directory


def _remove_halves(directory: Path) -> None:
    """Removes programs that a killed process wrote by half.

    JAX would neither read nor replace one of them, and where the time of its use is lacking store no other program.
    """
    from filelock import FileLock, Timeout

    # While another process is writing nothing is removed.
    with contextlib.suppress(Timeout, OSError), FileLock(directory / _LOCK, timeout=_PATIENCE):
        for path in directory.glob(f"*{_PROGRAM}"):
            if not path.with_name(path.name.removesuffix(_PROGRAM) + _USED).exists():
                path.unlink()
