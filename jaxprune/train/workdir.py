"""The run directory: its config, its completion, and a lock against concurrent training."""

import contextlib
import fcntl
import importlib.metadata
import json
import logging
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import jaxprune
from jaxprune import processes
from jaxprune.errors import UserError, shortened
from jaxprune.files import TEXT_LIMIT, read_bytes, reading, sealed, size_and_crc, unsealed, write_atomically, writing
from jaxprune.train.writer import METRICS, warn_if_changed

CONFIG = "config.json"
COMPLETE = "complete.json"

_METRICS = "metrics"  # in it: bytes and CRC-32 of the metrics
LOCK = ".lock"
_PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint")
_KEYS_SHOWN = 12
_ABSENT = object()
# The run directories locked by this process, with its process id: forked children hold none of them.
_held: set[tuple[int, Path]] = set()

_log = logging.getLogger(__name__)


def prepare(workdir: str | os.PathLike, config: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Path:
    """Makes `workdir` the directory of the run of `config`, or checks that it already is.

    `config.json` gets the config, the package versions, and the commit if this is a git checkout.

    Args:
      workdir: the run directory, created if needed.
      config: a nested dict of plain values.
      defaults: {dotted key: value} that a recorded config had, as far as it lacks the keys: those of settings that did
        not exist when its run began.

    The first process of a run creates it, the others check it.

    Raises:
      UserError: the directory holds a run with another config (the keys are named), or something that is not a run; it
        cannot be written; or another process is just creating a run in it.
    """
    if processes.leads():
        try:
            return _prepare(Path(workdir), config, defaults or {})
        finally:
            processes.wait("prepared")
    processes.wait("prepared")
    return _prepare(Path(workdir), config, defaults or {})


def _prepare(workdir: Path, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> Path:
    config, defaults = _as_json(config), _as_json(defaults)
    record = {"config": config, "versions": versions(), "commit": commit()}
    path = workdir / CONFIG
    if not path.exists():
        _refuse_strangers(workdir)
        # If two runs start here at the same time, one of them finds the other's files.
        with locked(workdir):
            if not path.exists():
                write_atomically(path, json.dumps(record, indent=2) + "\n")
    try:
        existing = json.loads(path.read_bytes())
        tasks = [str(values.get("task", "")) for values in (existing["config"], config)]
        differences = _differences({**defaults, **_flat(existing["config"])}, _flat(config))
        changed = _differences(existing["versions"], record["versions"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path} cannot be read as the config of a run. Give another workdir.") from None
    if differences and tasks[0] != tasks[1]:
        raise UserError(f"{workdir} holds a run of {tasks[0]}, and this is {tasks[1]}: give another workdir.")
    if differences:
        raise UserError(
            f"{workdir} holds a run with another config: {_shown(differences)}. Give another workdir, or the config "
            "of that run to continue it."
        )
    if changed:
        _log.info("%s was started with other versions: %s.", workdir, _shown(changed))
    return workdir


def _refuse_strangers(workdir: Path) -> None:
    with writing(workdir):
        entries = sorted(workdir.iterdir()) if workdir.exists() else []
    strangers = [entry.name for entry in entries if not entry.name.startswith(".")]
    if strangers:
        raise UserError(
            f"{workdir} holds {', '.join(strangers[:3])} but no {CONFIG}, so it is not the directory of a run and is "
            "left alone. Give another workdir."
        )


def mark_complete(workdir: str | os.PathLike, summary: Mapping[str, Any]) -> None:
    """Marks the run as complete, with its results.

    Raises:
      UserError: the metrics cannot be read, or the mark cannot be written.
    """
    path = Path(workdir) / METRICS
    with reading(path):
        extent = {_METRICS: size_and_crc(path)} if path.is_file() else {}
    write_atomically(Path(workdir) / COMPLETE, sealed({**summary, **extent}, default=str) + "\n")


def is_complete(workdir: str | os.PathLike) -> bool:
    """Returns whether the run is complete; a damaged marker does not count."""
    return _summary(Path(workdir)) is not None


def read_summary(workdir: str | os.PathLike) -> dict[str, Any]:
    """Returns the summary that `mark_complete` wrote.

    Raises:
      UserError: the run is not complete.
    """
    summary = _summary(Path(workdir))
    if summary is None:
        raise UserError(f"{workdir} holds no complete run (no readable {COMPLETE}): rerun its command.")
    if extent := summary.pop(_METRICS, None):
        warn_if_changed(workdir, extent)
    return summary


def _summary(workdir: Path) -> dict[str, Any] | None:
    path = workdir / COMPLETE
    try:
        return unsealed(read_bytes(path, TEXT_LIMIT))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        _log.warning("%s is damaged (%s); the run counts as not complete.", path, shortened(error))
        return None


@contextlib.contextmanager
def locked(workdir: str | os.PathLike) -> Iterator[None]:
    """Locks the run directory for this process; the system releases the lock however the process ends.

    The lock is reentrant within a process.

    Raises:
      UserError: another process holds the lock, or the directory cannot be written.
    """
    path = Path(workdir) / LOCK
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    holding = os.getpid(), path.parent.resolve()
    if holding in _held:
        # A second lock would have no effect, and closing its file would release the first.
        yield
        return
    with writing(path):
        file = path.open("a+", errors="replace")
    with file:
        _lock(file, path)
        _held.add(holding)
        try:
            yield
        finally:
            _held.discard(holding)


def _lock(file: IO[str], path: Path) -> None:
    try:
        # POSIX locks are not inherited: a data worker that outlives a killed run does not keep the lock.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.seek(0)
        holder = file.read(20).strip() or "unknown"
        raise UserError(
            f"{path.parent} is in use by another process (id {holder}). Wait for it, stop it, or give another workdir."
        ) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be locked ({error.strerror}): its file system may not support locks. Give a workdir on "
            "another one."
        ) from error
    with writing(path):
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()


def versions() -> dict[str, str]:
    """Returns the versions of jaxprune and of the packages that its numbers depend on."""
    return {"jaxprune": jaxprune.__version__, **{name: importlib.metadata.version(name) for name in _PACKAGES}}


def commit() -> str | None:
    """Returns the git commit that jaxprune runs from, "-dirty" after it if files differ; None outside a checkout."""
    package = Path(jaxprune.__file__).parent
    git = ["git", "-C", str(package)]
    try:
        # An installed package may lie inside another repository.
        subprocess.run(
            [*git, "ls-files", "--error-unmatch", "__init__.py"], check=True, capture_output=True, timeout=10
        )
        describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(describe, check=True, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(values, default=str))


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    pairs = {key: (old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in sorted({*old, *new})}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns {dotted key: value}; an empty group has no keys."""
    flat = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def _shown(differences: dict[str, tuple[Any, Any]]) -> str:
    sentences = [f"{key} is {_value(old)} there and {_value(new)} here" for key, (old, new) in differences.items()][
        :_KEYS_SHOWN
    ]
    rest = len(differences) - len(sentences)
    return "; ".join(sentences) + (f"; and {rest} more" if rest else "")


def _value(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)
