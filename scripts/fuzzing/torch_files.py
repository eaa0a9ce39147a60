"""Writes files as `torch.save` does, without PyTorch: whatever a test wants to be in them."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

_KINDS = {"float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long"}


class Raw(bytes):
    """Pickle instructions, taken as they are."""


def constant(value: Any) -> bytes:
    """The instructions that push a plain value."""
    return pickle.dumps(value, 2)[2:-1]


def tensor(
    key: str, size: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, kind: str = "Float"
) -> Raw:
    """The instructions that push a tensor over the storage `key`."""
    storage = constant("storage") + b"ctorch\n" + f"{kind}Storage\n".encode() + constant(key) + constant("cpu")
    view = constant(offset) + constant(shape) + constant(strides) + constant(False)
    hooks = b"ccollections\nOrderedDict\n)R"
    return Raw(b"ctorch._utils\n_rebuild_tensor_v2\n((" + storage + constant(size) + b"tQ" + view + hooks + b"tR")


def program(value: Any, storages: dict[str, np.ndarray]) -> bytes:
    """The instructions that push a value; its arrays become tensors and are collected in `storages`."""
    if isinstance(value, Raw):
        return value
    if isinstance(value, dict):
        return b"}" + b"".join(constant(k) + program(v, storages) + b"s" for k, v in value.items())
    if isinstance(value, np.ndarray):
        key = str(len(storages))
        storages[key] = np.ascontiguousarray(value)
        strides = tuple(stride // value.itemsize for stride in storages[key].strides)
        return tensor(key, value.size, value.shape, strides, kind=_KINDS[value.dtype.name])
    return constant(value)


def write(path: Path, value: Any, *, legacy: bool = False, storages: dict[str, np.ndarray] | None = None) -> Path:
    """Writes `value`, whose arrays become tensors, in one of PyTorch's two formats."""
    storages = {} if storages is None else storages
    pickled = b"\x80\x02" + program(value, storages) + b"."
    if not legacy:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{path.stem}/data.pkl", pickled)
            archive.writestr(f"{path.stem}/byteorder", "little")
            for key, array in storages.items():
                archive.writestr(f"{path.stem}/data/{key}", array.tobytes())
        return path
    head = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}]
    parts = [*(pickle.dumps(part, 2) for part in head), pickled, pickle.dumps(list(storages), 2)]
    parts += [array.size.to_bytes(8, "little") + array.tobytes() for array in storages.values()]
    path.write_bytes(b"".join(parts))
    return path
