"""The checkpoints of one run: Orbax writes the arrays, a manifest says what is valid.

A checkpoint is a directory named by its step:

    40/state/         Orbax's files; the state as one flat {name: array}
    40/data.json      further values to restore, such as the position of the data iterator
    40/manifest.json  format, step, every array's shape and dtype, every file's size and CRC-32, and a CRC-32 of that

It is written as `40.writing`, and the rename to `40` is the commit: a process killed before it leaves a directory
that is not mistaken for a checkpoint, a process killed after it leaves a complete one. A checkpoint whose files do not
match its manifest is skipped in favour of the previous one.
"""

import contextlib
import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxprune import processes, tensorstore_threads
from jaxprune.checkpoints.manifest import MANIFEST, Damage, manifest_of, require_same, sealed, verify
from jaxprune.errors import UserError, shortened
from jaxprune.files import as_path, folders_below, listing, reading, require_utf8, size_and_crc, sync_directory, writing
from jaxprune.weights.finite import require_finite

_DATA = "data.json"
_STATE = "state"
_WRITING = ".writing"
_REMOVING = ".removing"
_DAMAGED = ".damaged"
_STEP = r"0|[1-9][0-9]*"

_log = logging.getLogger(__name__)


class CheckpointStore:
    """Saves and restores (state, data state) of one run; the only writer of its directory.

    Args:
      directory: where the checkpoints are; created by the first save.
      keep: number of newest checkpoints to keep.
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 3):
        if keep < 1:
            raise UserError(f"keep={keep}: a run keeps at least one checkpoint.")
        self.directory = as_path(directory).absolute()
        require_utf8(self.directory)
        self.keep = keep
        self._handler = ocp.PyTreeCheckpointHandler()
        self._orbax = _orbax(self._handler)
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._background: Future[None] | None = None

    def save(self, step: int, state: Any, data_state: dict, *, background: bool = False) -> None:
        """Writes one checkpoint, and removes those beyond `keep` once it is complete and on disk.

        Args:
          step: its name; must not have been saved already.
          state: a pytree of arrays, sharded or not.
          data_state: a dict of plain JSON values.
          background: return once there is a copy of the state in the host's memory, and write that while the caller
            goes on; all methods but `check` and `path` wait for it. Several processes save together and do not go on.

        Raises:
          UserError: the file system reports an error, to this save or to the one before in the background; existing
            checkpoints are not changed.
        """
        self.finish()
        if (self.directory / str(step)).exists():
            raise FileExistsError(f"{self.directory / str(step)} has been saved already")
        arrays, data = _flatten(state), json.dumps(data_state)
        if background and jax.process_count() == 1:
            copies = {name: np.array(array) for name, array in arrays.items()}
            self._background = self._thread.submit(self._save, step, copies, data)
        else:
            self._save(step, arrays, data)

    def check(self) -> None:
        """Raises the `UserError` of a save in the background that has failed, without waiting for one that goes on."""
        if self._background and self._background.done():
            self.finish()

    def finish(self) -> None:
        """Waits for the checkpoint that is being written in the background.

        Raises:
          UserError: it could not be written.
        """
        background, self._background = self._background, None
        if background:
            background.result()

    def _save(self, step: int, arrays: dict[str, Any], data: str) -> None:
        final, partial = self.directory / str(step), self.directory / f"{step}{_WRITING}"
        processes.wait("before a save")
        with writing(partial):
            if processes.leads():
                self._clear_leftovers()
                partial.mkdir(parents=True)
            processes.wait("into a save")
            self._write(partial / _STATE, arrays)
            processes.wait("after a save")
            if processes.leads():
                self._commit(step, partial, final, arrays, data)
        processes.wait("committed")

    def _write(self, path: Path, arrays: dict[str, Any]) -> None:
        with _errors_of_the_system(), _without_tracebacks():
            self._orbax.save(path, args=ocp.args.PyTreeSave(arrays))

    def _commit(self, step: int, partial: Path, final: Path, arrays: dict[str, Any], data: str) -> None:
        self._require_readable(partial / _STATE)
        (partial / _DATA).write_text(data)
        (partial / MANIFEST).write_text(sealed(manifest_of(partial, step, arrays)))
        size_and_crc(partial / MANIFEST, sync=True)
        for folder, _ in folders_below(partial):
            sync_directory(folder)
        os.rename(partial, final)
        sync_directory(self.directory)
        self._prune()

    def _require_readable(self, path: Path) -> None:
        # Orbax looks for the files that its threads wrote, and joins what it finds: a directory that could not be
        # listed is empty to it.
        try:
            self._handler.metadata(path)
        except ValueError as error:
            raise OSError(errno.EIO, f"an array cannot be read back: {shortened(error)}") from error

    def restore_latest(self, abstract_state: Any) -> tuple[int, Any, dict] | None:
        """Returns (step, state, data state) of the newest good checkpoint, or None if nothing was ever saved.

        Args:
          abstract_state: the state's structure, its leaves with `shape`, `dtype` and `sharding`. The sharding may
            differ from the one it was saved with; a leaf without one comes back as numpy.

        Damaged checkpoints newer than the one restored are named in one warning and renamed `<step>.damaged`, so that
        their steps can be saved again.

        Raises:
          UserError: checkpoints exist and none is good; the good one's tensors are not those asked for; or it cannot be
        read.
        """
        self.finish()
        survey = _survey(self.directory)
        if survey.step is None:
            return None
        processes.wait("surveyed")
        for name in survey.damaged if processes.leads() else ():
            _set_aside(self.directory / name)
        path = self.directory / str(survey.step)
        targets, structure = _flatten(abstract_state), jax.tree.structure(abstract_state)
        require_same(path, survey.manifest["arrays"], targets)
        restore_args = {name: _restore_args(leaf) for name, leaf in targets.items()}
        with reading(path), _errors_of_the_system():
            arrays = self._orbax.restore(
                path / _STATE, args=ocp.args.PyTreeRestore(item=targets, restore_args=restore_args)
            )
            data_state = json.loads((path / _DATA).read_text())
        return survey.step, jax.tree.unflatten(structure, [arrays[name] for name in targets]), data_state

    def all_steps(self) -> list[int]:
        """Returns the steps of the committed checkpoints, oldest first, without verifying them."""
        self.finish()
        return self._committed()

    def _committed(self) -> list[int]:
        return sorted(step for step in _steps(self.directory) if (self.directory / str(step) / MANIFEST).is_file())

    def path(self, step: int) -> Path:
        """Returns the directory of the checkpoint of a step."""
        return self.directory / str(step)

    def close(self) -> None:
        """Waits for what is being written, and releases the threads.

        Raises:
          UserError: it could not be written.
        """
        try:
            self.finish()
        finally:
            self._thread.shutdown()
            self._orbax.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except UserError as unwritten:
            if error is None:
                raise
            _log.error("%s", unwritten)  # beside the error that ends the run

    def _clear_leftovers(self) -> None:
        for suffix in (_REMOVING, _WRITING):
            for path in self.directory.glob(f"*{suffix}"):
                if not re.fullmatch(_STEP, path.name.removesuffix(suffix)):
                    continue  # not ours
                if path.is_symlink() or not path.is_dir():
                    path.unlink()
                else:
                    # In the process of the save that failed, its threads may still write here.
                    _remove(path)

    def _prune(self) -> None:
        for step in self._committed()[: -self.keep]:
            # A removal cut short must not look like a damaged checkpoint.
            _remove(self.directory / str(step))


def _remove(path: Path) -> None:
    """Removes a directory, under another name: `40.removing`."""
    aside = path.with_suffix(_REMOVING)
    os.rename(path, aside)
    shutil.rmtree(aside)


def load_params(directory: str | os.PathLike, *, ema: bool = False) -> dict[str, np.ndarray]:
    """Returns {dotted name: array} of a run's newest good checkpoint, without building the model.

    Args:
      directory: a run directory, its `checkpoints`, or one checkpoint in it. Nothing in it is changed, so a run that is
        still training can be read.
      ema: return the averaged parameters instead of the last ones, and averages of running statistics.

    Raises:
      UserError: there is no good checkpoint, or it holds no averaged parameters, or some that are not finite.
    """
    params = _load(directory, "extra/ema/" if ema else "params/")
    if not params:
        raise UserError(f"{directory} holds no averaged parameters: it was trained with ema_decay=0.")
    return params


def load_running(directory: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns the running statistics saved with the parameters; {} if there are none."""
    return _load(directory, "extra/running/")


def _load(directory: str | os.PathLike, prefix: str) -> dict[str, np.ndarray]:
    directory = as_path(directory).absolute()
    require_utf8(directory)
    if (directory / MANIFEST).is_file() or (directory / _STATE).is_dir():
        path, manifest = directory, _verify_named(directory)
    else:
        folder = directory / "checkpoints" if (directory / "checkpoints").is_dir() else directory
        survey = _survey(folder)
        if survey.step is None:
            raise UserError(f"There is no checkpoint in {folder}. Give the directory of a run with a saved checkpoint.")
        path, manifest = folder / str(survey.step), survey.manifest
    targets = {
        name: jax.ShapeDtypeStruct(shape, dtype)
        for name, (shape, dtype) in manifest["arrays"].items()
        if name.startswith(prefix)
    }
    if not targets:
        return {}
    orbax = _orbax(ocp.PyTreeCheckpointHandler())
    restore_args = {name: _restore_args(leaf) for name, leaf in targets.items()}
    with contextlib.closing(orbax), reading(path), _errors_of_the_system():
        arrays = orbax.restore(
            path / _STATE,
            args=ocp.args.PyTreeRestore(item=targets, restore_args=restore_args, partial_restore=True),
        )
    require_finite({name.removeprefix(prefix): value for name, value in arrays.items()}, str(path))
    return {name.removeprefix(prefix): value for name, value in arrays.items()}


class _Survey(NamedTuple):
    step: int | None
    manifest: dict
    damaged: list[str]


def _orbax(handler: ocp.PyTreeCheckpointHandler) -> ocp.Checkpointer:
    # A bare Checkpointer instead of CheckpointManager: the manager has its own commit rename, which would come before
    # our manifest is written and leave a moment in which a checkpoint is neither whole nor recognisably half-written.
    return ocp.Checkpointer(handler)


@contextlib.contextmanager
def _errors_of_the_system() -> Iterator[None]:
    """Raises TensorStore's errors of the file system as `OSError`."""
    try:
        yield
    except ValueError as error:
        code = re.search(r"os_error_code='(\d+)'", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1]))) from error


@contextlib.contextmanager
def _without_tracebacks() -> Iterator[None]:
    """Keeps the threads of Orbax and TensorStore from printing the exceptions that they raise."""
    logger, is_other = logging.getLogger("absl"), lambda record: "_SignalingThread" not in record.getMessage()
    tensorstore_threads.pass_over()
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def _flatten(state: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _verify_named(path: Path) -> dict:
    try:
        return verify(path)
    except Damage as damage:
        raise UserError(f"The checkpoint {path} is damaged ({damage}). Choose another one.") from None


def _survey(directory: Path) -> _Survey:
    """Finds the newest good checkpoint; warns once about everything newer that is not one."""
    try:
        return _surveyed(directory)
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read ({error.strerror}): let this user read it.") from error


def _surveyed(directory: Path) -> _Survey:
    damaged: dict[str, str] = {}
    newest, manifest = None, {}
    for step in sorted(_steps(directory), reverse=True):
        try:
            newest, manifest = step, verify(directory / str(step))
            break
        except Damage as damage:
            newest = None
            damaged[str(step)] = str(damage)
    if newest is None and damaged:
        raise UserError(
            f"None of the checkpoints in {directory} can be used: {_reasons(damaged)}. Start again in another "
            "workdir, or remove that directory."
        )
    half_written = dict.fromkeys(_half_written(directory, newer_than=newest), "its save was cut short")
    if damaged or half_written:
        _log.warning(
            "Passing over damaged checkpoint(s) in %s: %s. %s",
            directory,
            _reasons(damaged | half_written),
            "There is none before." if newest is None else f"Using the one of step {newest}.",
        )
    return _Survey(newest, manifest, list(damaged))


def _steps(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return [int(path.name) for path in listing(directory) if path.is_dir() and re.fullmatch(_STEP, path.name)]


def _half_written(directory: Path, newer_than: int | None) -> list[str]:
    """Returns names like `40.writing`: never committed, so nothing was lost and nothing has to be moved."""
    names = [path.name for path in listing(directory)] if directory.is_dir() else []
    matches = [re.fullmatch(rf"({_STEP})(\..+)", name) for name in names]
    return sorted(
        match[0]
        for match in matches
        if match
        and not match[2].startswith((_DAMAGED, _REMOVING))
        and (newer_than is None or int(match[1]) > newer_than)
    )


def _set_aside(path: Path) -> None:
    target = path.with_name(path.name + _DAMAGED)
    count = 1
    while target.exists():
        count += 1
        target = path.with_name(f"{path.name}{_DAMAGED}-{count}")
    with writing(target):
        os.rename(path, target)
    _log.info("The damaged checkpoint is kept as %s.", target)


def _restore_args(leaf: Any) -> ocp.RestoreArgs:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=leaf.shape, dtype=leaf.dtype)


def _reasons(damaged: dict[str, str]) -> str:
    return "; ".join(f"{name} ({reason})" for name, reason in damaged.items())
