"""Patch scores of pictures in files of one batch each, so that a stopped run resumes."""

import io
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from jaxprune.data.pictures import Pictures, read_ahead
from jaxprune.errors import UserError
from jaxprune.evaluate import Batch, Forward, run_over
from jaxprune.evaluate.stored_arrays import read_stored, warn_of_damage
from jaxprune.files import write_atomically

_log = logging.getLogger(__name__)


class Part(NamedTuple):
    """The scores of consecutive pictures in one file.

    Attributes:
      files: names of the pictures.
      broken: why a picture cannot be read; "" if it can.
      scores: by scorer, float32 (n, p); NaN for pictures that cannot be read.
    """

    files: tuple[str, ...]
    broken: tuple[str, ...]
    scores: dict[str, np.ndarray]


def read_part(path: Path) -> Part:
    """Reads a file of scores.

    Raises:
      UserError: it is missing or damaged.
    """
    part = _stored_part(path)
    if part is None:
        raise UserError(f"The file of scores {path} is missing or damaged: run the same command again.")
    return part


def _stored_part(path: Path) -> Part | None:
    """Returns the content of a file of scores; None, after a warning, of a damaged one."""
    fields = read_stored(path)
    if fields is None:
        return None
    fields.pop("grid", None)
    try:
        files, broken = (tuple(map(str, fields.pop(name))) for name in ("files", "broken"))
        if any(scores.shape[:1] != (len(files),) or scores.dtype != np.float32 for scores in fields.values()):
            raise ValueError("it has other columns than scores")
        if len(broken) != len(files):
            raise ValueError("it has other columns than scores")
    except (KeyError, TypeError, ValueError) as error:
        warn_of_damage(path, error)
        return None
    return Part(files, broken, fields)


def write_part(path: Path, part: Part, grid: tuple[int, ...]) -> None:
    """Writes a file of scores."""
    data = io.BytesIO()
    scores: Any = {text: values.astype(np.float32) for text, values in part.scores.items()}
    np.savez_compressed(data, files=np.array(part.files), broken=np.array(part.broken), grid=np.array(grid), **scores)
    write_atomically(path, data.getvalue())


def write_scores(
    folder: Path,
    pictures: Pictures,
    scores: Forward,
    scorers: Sequence[str],
    mesh: Mesh,
    *,
    size: tuple[int, ...],
    grid: tuple[int, ...],
    batch_size: int,
    num_threads: int,
) -> list[Path]:
    """Writes the scores of all pictures, one file per batch; complete files are kept.

    Args:
      folder: of the files.
      pictures: the pictures.
      scores: computes {scorer: scores (b, p)}.
      scorers: names of the scorers, in the order of the files' columns.
      mesh: the devices to run on.
      size: (height, width) of the pictures, or (frames, height, width) of clips.
      grid: of the patches, (rows, columns), or of tubes (layers, rows, columns).
      batch_size: pictures per file.
      num_threads: threads that read pictures.

    Returns:
      The files, in the order of the pictures.
    """
    batch_size = min(batch_size, len(pictures.names))
    starts = list(range(0, len(pictures.names), batch_size))
    paths = {start: folder / f"{start:08d}.npz" for start in starts}
    names = {start: tuple(pictures.names[start : start + batch_size]) for start in starts}
    folder.mkdir(parents=True, exist_ok=True)
    missing = [s for s in starts if not _is_stored(paths[s], names[s], scorers)]
    if len(missing) < len(starts):
        _log.info("%d of %d files of scores exist already", len(starts) - len(missing), len(starts))
    if missing:
        broken: dict[int, tuple[str, ...]] = {}
        read = zip(missing, read_ahead(pictures, missing, batch_size, num_threads), strict=True)
        batches = _Batches(read, len(missing), names, broken, (batch_size, *size, 3))
        writer = _Writer(paths, names, broken, scorers, grid)
        run_over(batches, {"scores": scores}, [writer], mesh, desc="scoring")
    return list(paths.values())


def _is_stored(path: Path, names: tuple[str, ...], scorers: Sequence[str]) -> bool:
    part = _stored_part(path)
    return part is not None and part.files == names and set(scorers) <= set(part.scores)


class _Batches:
    """Reads pictures as batches; reasons for unreadable ones are in `broken`, by the start of the batch."""

    def __init__(
        self,
        read: Iterable[tuple[int, list[tuple[np.ndarray | None, str]]]],
        count: int,
        names: Mapping[int, tuple[str, ...]],
        broken: dict[int, tuple[str, ...]],
        shape: tuple[int, ...],
    ):
        self._read, self._count, self._names, self._broken, self._shape = read, count, names, broken, shape

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        for start, pictures in self._read:
            self._broken[start] = tuple(why for _, why in pictures)
            # The last batch is padded, for a single program; unreadable pictures are filled likewise.
            images = np.zeros(self._shape, np.uint8)
            for row, (image, why) in enumerate(pictures):
                if image is None:
                    _log.warning("%s is left out: %s", self._names[start][row], why)
                else:
                    images[row] = image
            rows = np.arange(len(images), dtype=np.int32)
            number = np.full_like(rows, start // len(images))
            yield {"image": images, "index": start + rows, "valid": rows < len(pictures), "number": number}


class _Writer:
    """Writes the file of each batch."""

    def __init__(
        self,
        paths: Mapping[int, Path],
        names: Mapping[int, tuple[str, ...]],
        broken: Mapping[int, tuple[str, ...]],
        scorers: Sequence[str],
        grid: tuple[int, ...],
    ):
        self._paths, self._names, self._broken, self._scorers, self._grid = paths, names, broken, scorers, grid

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        start = int(batch["index"][0])
        broken = self._broken[start]
        lost = np.array([bool(why) for why in broken])[:, None]
        scores = {name: np.where(lost, np.nan, outputs["scores"][name]) for name in self._scorers}
        write_part(self._paths[start], Part(self._names[start], broken, scores), self._grid)

    def result(self) -> None:
        return None
