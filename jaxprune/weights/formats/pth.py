"""Reads files of `torch.save`, without PyTorch and without running any code in a file (see `pickled`).

A small file can describe something huge, such as compressed zeros, so reading has a budget.
"""

import io
import itertools
import logging
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jaxprune.errors import UserError, nearest
from jaxprune.weights.formats.pickled import Budget, Damaged, Refused, Storage, Tensor, flat_key, follow, kind_of

# Keys under which training scripts store weights; the first that exists is used.
KEYS = (
    "model",
    "state_dict",
    "model_state",
    "model_state_dict",
    "teacher",
    "target_encoder",
    "student",
    "module",
    "net",
)

_log = logging.getLogger(__name__)

_DEPTH = 16  # maximum number of dicts around the weights
_NAMES_SHOWN = 12

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


def read_pth(path: Path, key: str | tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    """Reads the tensors of a `.pth`, `.pt`, `.bin` or `.ckpt` file under their names; both of PyTorch's formats.

    Training scripts often save the weights in a dict with other values. The weights are then the first entry of `KEYS`
    that is a dict with tensors (and so on inside it); otherwise the tensors of the dict itself.

    Args:
      key: an entry to read instead; or several, whose tensors get the names `entry.name`. Of several, those that exist
        are read, and if none does, the default.

    Raises:
      UserError: the file is truncated, is not from PyTorch, has no such entry, or contains code, which is not run.
    """
    try:
        with path.open("rb") as file:
            zipped = file.read(4) == b"PK\x03\x04"
            file.seek(0)
            budget = Budget(path.stat().st_size)
            value, load = (_open_zip if zipped else _open_legacy)(file, budget)
            return _materialise(_choose(value, key, path), load, budget)
    except UserError:
        raise
    except Refused as refusal:
        raise UserError(
            f"{path} contains {_clipped(str(refusal), 120)}, which is neither a tensor nor a plain value: refused, and "
            "nothing of it was run. Save the tensors alone in PyTorch: torch.save(model.state_dict(), path)."
        ) from None
    except Exception as error:  # a damaged file can break anything
        why = _clipped(str(error), 160) or type(error).__name__
        raise UserError(
            f"{path} cannot be read ({why}): it is truncated, damaged or not a PyTorch file; fetch it again."
        ) from error


def _open_zip(file: BinaryIO, budget: Budget) -> tuple[Any, Callable[[Storage], bytes]]:
    archive = zipfile.ZipFile(file)
    members = {info.filename: info for info in archive.infolist()}
    pickled = next((name for name in members if name.split("/", 1)[-1] == "data.pkl"), None)
    if pickled is None:
        raise Damaged("a zip archive without data.pkl")
    root = pickled.removesuffix("data.pkl")

    def read(member: zipfile.ZipInfo) -> bytes:
        if member.compress_type != zipfile.ZIP_STORED:
            raise Damaged(f"{member.filename} is compressed, which PyTorch does not do: unpack it, and zip -0 it")
        budget.hold(member.file_size)
        return archive.read(member)

    if f"{root}constants.pkl" in members:
        raise Refused("a TorchScript program")
    if f"{root}byteorder" in members and read(members[f"{root}byteorder"]) != b"little":
        raise Damaged("its numbers are big-endian")

    def load(storage: Storage) -> bytes:
        member = members.get(f"{root}data/{storage.key}")
        size, present = storage.size * storage.dtype.itemsize, 0 if member is None else member.file_size
        if member is None or present != size:
            raise Damaged(f"{present} of {size} bytes of storage {storage.key}")
        return read(member)

    return follow(io.BytesIO(read(members[pickled])), {}, budget), load


def _open_legacy(file: BinaryIO, budget: Budget) -> tuple[Any, Callable[[Storage], bytes]]:
    if follow(file, {}, budget) != _LEGACY_MAGIC:
        raise Damaged("torch.save did not write it")
    follow(file, {}, budget)  # the version of the protocol
    if not follow(file, {}, budget)["little_endian"]:
        raise Damaged("its numbers are big-endian")
    storages: dict[str, Storage] = {}
    value = follow(file, storages, budget)
    # The storages follow the pickles, each after its number of elements.
    places, end = {}, 0
    for key in map(flat_key, follow(file, {}, budget)):
        size = int.from_bytes(file.read(8), "little") * storages[key].dtype.itemsize
        places[key] = (file.tell(), size)
        end = file.seek(size, 1)
    if (file_size := file.seek(0, 2)) < end:
        raise Damaged(f"{file_size} of {end} bytes")

    def load(storage: Storage) -> bytes:
        offset, size = places[storage.key]
        budget.hold(size)
        file.seek(offset)
        return file.read(size)

    return value, load


def _materialise(tensors: dict[str, Tensor], load: Callable[[Storage], bytes], budget: Budget) -> dict[str, np.ndarray]:
    """Reads tensors, each storage once; equal views of a storage share an array."""
    views: dict[Tensor, np.ndarray] = {}
    key, flat = None, b""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].storage.key):
        if tensor in views:
            continue
        if tensor.storage.key != key:
            key, flat = tensor.storage.key, load(tensor.storage)
        views[tensor] = _view(np.frombuffer(flat, tensor.storage.dtype), tensor, name, budget)
    return {name: views[tensor] for name, tensor in tensors.items()}


def _view(flat: np.ndarray, tensor: Tensor, name: str, budget: Budget) -> np.ndarray:
    first = tensor.storage.start + tensor.offset
    if len(tensor.shape) != len(tensor.strides) or min((first, *tensor.shape, *tensor.strides)) < 0:
        raise Damaged(f"{name} has no shape")
    if 0 in tensor.shape:
        return np.zeros(tensor.shape, flat.dtype)
    # as_strided would silently read beyond the end.
    if first + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True)) >= len(flat):
        raise Damaged(f"{name} lies beyond the end of its storage")
    budget.hold(math.prod(tensor.shape) * flat.itemsize)
    strides = [stride * flat.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(flat[first:], tensor.shape, strides).copy()


def _choose(value: Any, key: str | tuple[str, ...] | None, path: Path) -> dict[str, Tensor]:
    if not isinstance(value, dict):
        raise UserError(f"{path} contains one {kind_of(value)} and no names: save a state_dict.")
    if isinstance(key, tuple):
        several = [name for name in key if _has_tensors(value.get(name))]
        if len(several) > 1:
            return {f"{name}.{part}": entry for name in several for part, entry in _choose(value, name, path).items()}
    elif key is not None:
        if not _has_tensors(value.get(key)):
            names = [name for name in value if isinstance(name, str)][:_NAMES_SHOWN]
            raise UserError(f"{path} has no tensors under {key!r}.{nearest(key, names)} It has: {_tell(value)}.")
        value = value[key]
    for _ in range(_DEPTH):
        names = [name for name in KEYS if _has_tensors(value.get(name))]
        if not names:
            break
        if len(names) > 1:
            _log.info("%s: taking %r; key= chooses another of %s", path, names[0], ", ".join(names))
        value = value[names[0]]
    else:
        raise Damaged(f"its weights are nested more than {_DEPTH} dicts deep")
    tensors = {str(name): entry for name, entry in value.items() if isinstance(entry, Tensor)}
    if not tensors:
        raise UserError(f"{path} has no tensors where weights usually are; choose with key=. It has: {_tell(value)}.")
    return tensors


def _has_tensors(value: Any) -> bool:
    """Whether a dict, or one inside it under `KEYS`, contains tensors; every dict is visited once."""
    pending, visited = [value], set()
    while pending:
        entry = pending.pop()
        if not isinstance(entry, dict) or id(entry) in visited:
            continue
        visited.add(id(entry))
        if any(isinstance(inside, Tensor) for inside in entry.values()):
            return True
        pending += [entry[name] for name in KEYS if name in entry]
    return False


def _tell(value: dict) -> str:
    entries = itertools.islice(value.items(), _NAMES_SHOWN)
    rest = f", and {len(value) - _NAMES_SHOWN} more" if len(value) > _NAMES_SHOWN else ""
    return ", ".join(f"{_clipped(str(name))} ({kind_of(entry)})" for name, entry in entries) + rest or "nothing"


def _clipped(text: str, length: int = 60) -> str:
    text = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text[: length + 1])
    return text if len(text) <= length else text[:length] + "…"
