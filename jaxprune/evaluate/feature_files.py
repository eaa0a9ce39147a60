"""Features of a source's images in files of a few batches each, so that a stopped run resumes."""

import json
import logging
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxprune.data.loader import EvalBatches
from jaxprune.data.source import Source, example_name
from jaxprune.errors import UserError, shortened
from jaxprune.evaluate import Batch, Forward, run_over
from jaxprune.evaluate.feature_formats import Shard, encode, read_shard
from jaxprune.files import write_atomically

UNREADABLE = "unreadable.json"

_log = logging.getLogger(__name__)


def names_of(source: Source) -> tuple[str, ...]:
    """Returns the names of all examples of a source."""
    return tuple(example_name(source, index) for index in range(len(source)))


def unreadable_of(source: Source) -> int:
    """Returns the number of examples of a source known to be broken."""
    return sum(name in source.broken for name in names_of(source)) if source.broken else 0


def fingerprint(names: Sequence[str]) -> str:
    """Returns the number of images and the CRC-32 of their names, which identify the set."""
    crc = zlib.crc32("\n".join(names).encode(errors="surrogateescape"))
    return f"{len(names)} images, {crc:08x}"


def write_features(
    folder: Path,
    source: Source,
    batches: EvalBatches,
    features: Forward,
    mesh: Mesh,
    *,
    batch_size: int,
    shard_size: int,
    form: str,
    dtype: str,
) -> list[Path]:
    """Writes the features of all readable images; complete files are kept.

    Unreadable images are left out; the reasons are in `unreadable.json` and in `source.broken`.

    Args:
      folder: directory of the files, each named by the index of its first image.
      source: the images.
      batches: one pass over them.
      features: computes {name: array (b, …)}.
      mesh: the devices to run on.
      batch_size: images per batch.
      shard_size: images per file, a multiple of `batch_size`.
      form: "npz" or "arrayrecord".
      dtype: "float32" or "float16".

    Returns:
      The files, in the order of the images.

    Raises:
      UserError: no image can be read, or a feature exceeds the range of float16.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = names_of(source)
    starts = range(0, len(names), shard_size)
    paths = {start: folder / f"{start:08d}.{form}" for start in starts}
    unreadable = _read_unreadable(folder)
    is_complete = lambda start: _is_complete(paths[start], names[start : start + shard_size], unreadable)
    missing = [start for start in starts if not is_complete(start)]
    if len(missing) < len(paths):
        _log.info("%d of %d files in %s exist already", len(paths) - len(missing), len(paths), folder)
    if missing:
        spans = [(start // batch_size, (start + shard_size) // batch_size) for start in missing]
        parts = [batches.part(*span) for span in _joined(spans)]
        writer = _Writer(paths, names, source.broken, unreadable, shard_size, form, dtype)
        run_over(_Rows(parts, len(names)), {"features": features}, [writer], mesh, desc=f"features {folder.name}")
    source.broken.update(unreadable)  # including those of an earlier run
    return list(paths.values())


class _Rows:
    """The batches of some parts of a pass; each row has the index of its image, and whether it could be read."""

    def __init__(self, parts: Sequence[EvalBatches], count: int):
        self._parts, self._count = parts, count

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[Batch]:
        for part in self._parts:
            for start, batch in zip(part.starts, part, strict=True):
                index = (start + np.arange(len(batch["index"]))).astype(np.int32)
                columns = {name: batch[name] for name in ("image", "label")}
                # An unreadable image is replaced by another one.
                yield {**columns, "index": index, "readable": batch["valid"], "valid": index < self._count}


class _Writer:
    """Writes each file once its last batch has arrived."""

    def __init__(
        self,
        paths: Mapping[int, Path],
        names: Sequence[str],
        broken: Mapping[str, str],
        unreadable: dict[str, str],
        shard_size: int,
        form: str,
        dtype: str,
    ):
        self._paths, self._names, self._broken, self._unreadable = paths, names, broken, unreadable
        self._shard_size, self._form, self._dtype = shard_size, form, dtype
        self._parts: list[dict[str, Any]] = []

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        columns = {name: batch[name] for name in ("index", "label", "readable")}
        self._parts.append({**columns, "features": outputs["features"]})
        end = int(batch["index"][-1]) + 1
        if end % self._shard_size == 0 or end == len(self._names):
            self._write()

    def _write(self) -> None:
        parts, self._parts = self._parts, []
        columns = {name: np.concatenate([part[name] for part in parts]) for name in ("index", "label", "readable")}
        readable, index = columns["readable"], columns["index"]
        path = self._paths[int(index[0])]
        self._note_unreadable(path.parent, index, readable)
        values = {
            name: np.concatenate([part["features"][name] for part in parts])[readable] for name in parts[0]["features"]
        }
        labels = columns["label"][readable]
        shard = Shard(
            tuple(self._names[int(number)] for number in index[readable]),
            index[readable],
            labels if labels.ndim > 1 or (labels >= 0).all() else None,
            {name: _cast(array, self._dtype, name) for name, array in values.items()},
        )
        write_atomically(path, encode(shard, self._form))

    def _note_unreadable(self, folder: Path, index: np.ndarray, readable: np.ndarray) -> None:
        before = dict(self._unreadable)
        for number, fine in zip(index, readable, strict=True):
            name = self._names[int(number)]
            self._unreadable.pop(name, None)
            if not fine:
                self._unreadable[name] = self._broken.get(name, "unreadable")
        if self._unreadable != before:
            write_atomically(folder / UNREADABLE, json.dumps(self._unreadable, indent=2, sort_keys=True) + "\n")

    def result(self) -> None:
        return None


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins adjacent spans, in ascending order."""
    joined: list[tuple[int, int]] = []
    for start, stop in spans:
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, stop))
    return joined


def _is_complete(path: Path, names: Sequence[str], unreadable: Mapping[str, str]) -> bool:
    if not path.exists():
        return False
    try:
        return read_shard(path).names == tuple(name for name in names if name not in unreadable)
    except UserError as error:
        _log.warning("%s", error)
        return False


def _read_unreadable(folder: Path) -> dict[str, str]:
    path = folder / UNREADABLE
    try:
        return json.loads(path.read_bytes()) if path.exists() else {}
    except ValueError as error:
        raise UserError(
            f"{path} cannot be read ({shortened(error)}): remove the directory {folder} and run again."
        ) from error


def _cast(values: np.ndarray, dtype: str, name: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        cast = values.astype(dtype)
    if np.isfinite(values).all() and not np.isfinite(cast).all():
        raise UserError(
            f"{name} features reach {np.abs(values).max():.3g}, beyond the range of {dtype}: use dtype=float32."
        )
    return cast
