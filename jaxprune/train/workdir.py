"""The run directory: whose run it is, whether it is finished, and that only one process trains in it."""

import contextlib
import fcntl
import importlib.metadata
import json
import logging
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jaxprune
from jaxprune import processes
from jaxprune.checkpoints.files import write_atomically
from jaxprune.errors import UserError

CONFIG = "config.json"
COMPLETE = "complete.json"

_LOCK = ".lock"
_PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint")
_KEYS_SHOWN = 12
_ABSENT = object()

_log = logging.getLogger(__name__)


def prepare(workdir: str | os.PathLike, config: Mapping[str, Any]) -> Path:
    """Makes `workdir` the directory of the run that `config` describes, or checks that it is already.

    `config.json` gets the config, the versions of what computes, and the commit if this is a git checkout.

    Args:
      workdir: the run directory, created if need be.
      config: a nested dict of plain values.

    Of the processes of one run the first makes it, and the others check.

    Raises:
      UserError: the directory holds a run with another config (the keys are named), or something that is no run.
    """
    if processes.leads():
        try:
            return _prepare(Path(workdir), config)
        finally:
            processes.wait("prepared")
    processes.wait("prepared")
    return _prepare(Path(workdir), config)


def _prepare(workdir: Path, config: Mapping[str, Any]) -> Path:
    workdir.mkdir(parents=True, exist_ok=True)
    config = json.loads(json.dumps(config, default=str))
    record = {"config": config, "versions": versions(), "commit": commit()}
    path = workdir / CONFIG
    if not path.exists():
        strangers = [entry.name for entry in sorted(workdir.iterdir()) if not entry.name.startswith(".")]
        if strangers:
            raise UserError(
                f"{workdir} holds {', '.join(strangers[:3])} but no {CONFIG}, so it is not the directory of a run and "
                "is left alone. Give another --workdir."
            )
        write_atomically(path, json.dumps(record, indent=2) + "\n")
        return workdir
    try:
        existing = json.loads(path.read_text())
        differences = _differences(existing["config"], config)
        changed = _differences(existing["versions"], record["versions"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} cannot be read as the config of a run. Give another --workdir.") from None
    if differences:
        raise UserError(
            f"{workdir} holds a run with another config: {_shown(differences)}. Give another --workdir, or the config "
            "of that run to continue it."
        )
    if changed:
        _log.info("%s was started with other versions: %s.", workdir, _shown(changed))
    return workdir


def mark_complete(workdir: str | os.PathLike, summary: Mapping[str, Any]) -> None:
    """Notes that the run has nothing left to do, with its results."""
    write_atomically(Path(workdir) / COMPLETE, json.dumps(summary, indent=2, default=str) + "\n")


def is_complete(workdir: str | os.PathLike) -> bool:
    """Returns whether the run has nothing left to do."""
    return (Path(workdir) / COMPLETE).exists()


def read_summary(workdir: str | os.PathLike) -> dict[str, Any]:
    """Returns the summary that `mark_complete` wrote."""
    return json.loads((Path(workdir) / COMPLETE).read_text())


@contextlib.contextmanager
def locked(workdir: str | os.PathLike) -> Iterator[None]:
    """Holds the run directory for this process; the system lets go of it however the process ends.

    Raises:
      UserError: another process holds it.
    """
    path = Path(workdir) / _LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            # A POSIX lock is not inherited: a data worker that outlives a killed run does not keep it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise UserError(
                f"{workdir} is in use by another process (id {holder}). Wait for it, stop it, or give another "
                "--workdir."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def versions() -> dict[str, str]:
    """Returns the versions of jaxprune and of what its numbers depend on."""
    return {"jaxprune": jaxprune.__version__, **{name: importlib.metadata.version(name) for name in _PACKAGES}}


def commit() -> str | None:
    """Returns the git commit that jaxprune runs from, "-dirty" behind it if files differ; None outside a checkout."""
    package = Path(jaxprune.__file__).parent
    git = ["git", "-C", str(package)]
    try:
        # An installed package may lie inside somebody else's repository.
        subprocess.run(
            [*git, "ls-files", "--error-unmatch", "__init__.py"], check=True, capture_output=True, timeout=10
        )
        describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(describe, check=True, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    old, new = _flat(old), _flat(new)
    pairs = {key: (old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in sorted({*old, *new})}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return flat


def _shown(differences: dict[str, tuple[Any, Any]]) -> str:
    shown = [f"{key} is {_value(old)} there and {_value(new)} here" for key, (old, new) in differences.items()][
        :_KEYS_SHOWN
    ]
    more = len(differences) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _value(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)
