"""The file formats of features: `.npz`, or ArrayRecord with one record per image."""

import importlib
import io
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxprune.errors import UserError, shortened
from jaxprune.evaluate.stored_arrays import require_whole
from jaxprune.files import open_regular

FORMATS = ("npz", "arrayrecord")
# Every record can be read separately.
_OPTIONS = "group_size:1"


class Shard(NamedTuple):
    """The features of consecutive images in one file.

    Attributes:
      names: names of the images: files, or indices in their source.
      index: their indices in the source, int32 (n,).
      labels: int32 (n,), or float32 (n, c) for several labels per image; None without labels.
      features: by name, (n, d) or (n, rows, columns, d).
    """

    names: tuple[str, ...]
    index: np.ndarray
    labels: np.ndarray | None
    features: dict[str, np.ndarray]


def encode(shard: Shard, form: str) -> bytes:
    """Returns the bytes of a file.

    A `.npz` has `names`, `index`, `labels` if any, and each feature under its name; a record of an ArrayRecord file is
    the `.npz` of one image, with `name` and `label`.
    """
    return _npz(_columns(shard)) if form == "npz" else _array_record(shard)


def read_shard(path: Path) -> Shard:
    """Reads a file of features.

    Raises:
      UserError: it is damaged or not a feature file.
    """
    try:
        return _read_npz(path) if path.suffix == ".npz" else _read_array_record(path)
    except UserError:
        raise
    # Damaged archives raise many kinds of exceptions, of zipfile, of its decompressors and of numpy.
    except Exception as error:
        raise UserError(
            f"{path} cannot be read as features ({shortened(error)}): remove it to have it recomputed."
        ) from error


def array_record() -> Any:
    """Returns the module that reads and writes ArrayRecord files.

    Raises:
      UserError: it is not installed.
    """
    try:
        return importlib.import_module("array_record.python.array_record_module")
    except ImportError as error:
        raise UserError(
            "format=arrayrecord needs the package array_record (pip install array_record): install it, or use npz."
        ) from error


def _columns(shard: Shard) -> dict[str, np.ndarray]:
    labels = {} if shard.labels is None else {"labels": shard.labels}
    return {"names": np.array(shard.names, np.str_), "index": shard.index, **labels, **shard.features}


def _npz(arrays: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    np.savez(data, **arrays)
    return data.getvalue()


def _read_npz(path: Path) -> Shard:
    with open_regular(path) as opened, np.load(opened) as file:
        require_whole(file.zip, opened)
        fields = {name: file[name] for name in file.files}
    names, index, labels = tuple(map(str, fields.pop("names"))), fields.pop("index"), fields.pop("labels", None)
    return Shard(names, index, labels, fields)


def _array_record(shard: Shard) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records"
        writer = array_record().ArrayRecordWriter(str(path), _OPTIONS)
        for row, name in enumerate(shard.names):
            label = {} if shard.labels is None else {"label": shard.labels[row]}
            values = {feature: values[row] for feature, values in shard.features.items()}
            writer.write(_npz({"name": np.array(name), "index": shard.index[row], **label, **values}))
        writer.close()
        return path.read_bytes()


def _read_array_record(path: Path) -> Shard:
    reader = array_record().ArrayRecordReader(str(path))
    if not reader.ok():
        raise ValueError("it is cut off")
    records = []
    for record in reader.read_all() if reader.num_records() else []:
        with np.load(io.BytesIO(record)) as file:
            records.append({name: file[name] for name in file.files})
    columns = {name: np.stack([record[name] for record in records]) for name in (records[0] if records else ())}
    names, labels = tuple(map(str, columns.pop("name", ()))), columns.pop("label", None)
    return Shard(names, columns.pop("index", np.zeros(0, np.int32)), labels, columns)
