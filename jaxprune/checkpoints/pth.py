"""Reads what `torch.save` writes, without PyTorch and without running anything that a file contains.

A pickle is a program: it builds values on a stack and may call whatever it names. Here a small machine follows it that
calls nothing. A name is a mark on the stack, and only the names of tensors, storages and plain containers are known;
any other ends the reading. Tensors stay descriptions until it is decided which of them are wanted, so the state of an
optimizer beside the weights costs no memory.
"""

import io
import logging
import pickletools
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxprune.errors import UserError, nearest

# Where training scripts keep the weights among other things; of several the first is taken.
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

logger = logging.getLogger(__name__)

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_TYPES = {
    "Float": np.float32,
    "Double": np.float64,
    "Half": np.float16,
    "BFloat16": jnp.bfloat16,
    "Long": np.int64,
    "Int": np.int32,
    "Short": np.int16,
    "Char": np.int8,
    "Byte": np.uint8,
    "Bool": np.bool_,
    "ComplexFloat": np.complex64,
    "ComplexDouble": np.complex128,
}
_STORAGES = {f"torch.{kind}Storage": np.dtype(dtype) for kind, dtype in _TYPES.items()}
_STORAGES |= dict.fromkeys(("torch.storage.UntypedStorage", "torch.UntypedStorage"), np.dtype(np.uint8))
_MENTIONED = frozenset({"torch.Tensor", "torch.nn.parameter.Parameter"})
# Instructions with a value behind them that is not the value that they stand for.
_UNKNOWN = frozenset({"INST", "PERSID", "EXT1", "EXT2", "EXT4"})
_DTYPES = {f"torch.{np.dtype(dtype).name}": np.dtype(dtype) for dtype in (*_TYPES.values(), np.uint16, np.uint32)}


class Storage(NamedTuple):
    """A run of `size` numbers that tensors are views of; `start` is where a view of old PyTorch begins."""

    key: str
    dtype: np.dtype
    size: int
    start: int = 0


class Tensor(NamedTuple):
    """A tensor that has not been read: offset and strides count elements of its storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Name(NamedTuple):
    """A name of Python that a pickle mentions."""

    name: str


class _Namespace(dict):
    """The arguments of a script, `argparse.Namespace`."""


class _Refused(Exception):
    """A pickle names something that is not on the list."""


class _Damaged(Exception):
    """Why a file of PyTorch cannot be read."""


def read_pth(path: Path, key: str | None = None) -> dict[str, np.ndarray]:
    """Reads the tensors of a `.pth`, `.pt`, `.bin` or `.ckpt` file under their names; both of PyTorch's formats.

    Weights often lie in a dict among other things. Taken is the first of `KEYS` that is a dict with tensors (and
    inside of it likewise), else the tensors that the dict itself holds.

    Args:
      key: the entry to take in place of that.

    Raises:
      UserError: the file is truncated, is no file of PyTorch, has no such entry, or holds more than data; what it
        names is not run.
    """
    try:
        with path.open("rb") as file:
            zipped = file.read(4) == b"PK\x03\x04"
            file.seek(0)
            value, load = (_open_zip if zipped else _open_legacy)(file)
            return _materialise(_choose(value, key, path), load)
    except UserError:
        raise
    except _Refused as refusal:
        raise UserError(
            f"{path} contains {refusal}, which is no tensor and no plain value: it is refused, and nothing of it was "
            "run. Save the tensors alone in PyTorch: torch.save(model.state_dict(), path)."
        ) from None
    except Exception as error:  # a damaged file can break anything
        raise UserError(
            f"{path} cannot be read ({error or type(error).__name__}): it is truncated, damaged or no file of "
            "PyTorch; fetch it again."
        ) from error


def _open_zip(file: BinaryIO) -> tuple[Any, Callable[[Storage], bytes]]:
    archive = zipfile.ZipFile(file)
    members = {info.filename: info for info in archive.infolist()}
    pickled = next((name for name in members if name.split("/", 1)[-1] == "data.pkl"), None)
    if pickled is None:
        raise _Damaged("a zip archive without data.pkl")
    root = pickled.removesuffix("data.pkl")
    if f"{root}constants.pkl" in members:
        raise _Refused("a TorchScript program")
    if f"{root}byteorder" in members and archive.read(f"{root}byteorder") != b"little":
        raise _Damaged("its numbers are big-endian")

    def load(storage: Storage) -> bytes:
        member = members.get(f"{root}data/{storage.key}")
        size, found = storage.size * storage.dtype.itemsize, 0 if member is None else member.file_size
        if member is None or found != size:
            raise _Damaged(f"{found} of {size} bytes of storage {storage.key}")
        return archive.read(member)

    return _follow(io.BytesIO(archive.read(pickled)), {}), load


def _open_legacy(file: BinaryIO) -> tuple[Any, Callable[[Storage], bytes]]:
    if _follow(file, {}) != _LEGACY_MAGIC:
        raise _Damaged("torch.save did not write it")
    _follow(file, {})  # the version of the protocol
    if not _follow(file, {})["little_endian"]:
        raise _Damaged("its numbers are big-endian")
    storages: dict[str, Storage] = {}
    value = _follow(file, storages)
    # Behind the pickles lie the storages, each with its count of numbers in front.
    places, end = {}, 0
    for key in _follow(file, {}):
        size = int.from_bytes(file.read(8), "little") * storages[key].dtype.itemsize
        places[key] = (file.tell(), size)
        end = file.seek(size, 1)
    if (there := file.seek(0, 2)) < end:
        raise _Damaged(f"{there} of {end} bytes")

    def load(storage: Storage) -> bytes:
        offset, size = places[storage.key]
        file.seek(offset)
        return file.read(size)

    return value, load


def _materialise(wanted: dict[str, Tensor], load: Callable[[Storage], bytes]) -> dict[str, np.ndarray]:
    arrays, kept = {}, {}
    for name, tensor in wanted.items():
        storage = tensor.storage
        if storage.key not in kept:
            kept = {storage.key: load(storage)}  # tensors that share a storage mostly follow each other
        arrays[name] = _view(np.frombuffer(kept[storage.key], storage.dtype), tensor, name)
    return arrays


def _view(flat: np.ndarray, tensor: Tensor, name: str) -> np.ndarray:
    first = tensor.storage.start + tensor.offset
    if len(tensor.shape) != len(tensor.strides) or min((first, *tensor.shape, *tensor.strides)) < 0:
        raise _Damaged(f"{name} has no shape")
    if 0 in tensor.shape:
        return np.zeros(tensor.shape, flat.dtype)
    # as_strided would read beyond the end without a word.
    if first + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True)) >= len(flat):
        raise _Damaged(f"{name} lies beyond the end of its storage")
    strides = [stride * flat.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(flat[first:], tensor.shape, strides).copy()


def _choose(value: Any, key: str | None, path: Path) -> dict[str, Tensor]:
    if not isinstance(value, dict):
        raise UserError(f"{path} holds one {_kind(value)} and no names: save a state_dict.")
    if key is not None:
        if not _has_tensors(value.get(key)):
            raise UserError(f"{path} has no tensors under {key!r}.{nearest(key, value)} It has: {_tell(value)}.")
        value = value[key]
    there = [name for name in KEYS if _has_tensors(value.get(name))]
    if there:
        if len(there) > 1:
            logger.info("%s: taking %r; key= chooses another of %s", path, there[0], ", ".join(there))
        return _choose(value[there[0]], None, path)
    tensors = {str(name): entry for name, entry in value.items() if isinstance(entry, Tensor)}
    if not tensors:
        raise UserError(f"{path} has no tensors where weights usually are; choose with key=. It has: {_tell(value)}.")
    return tensors


def _has_tensors(value: Any) -> bool:
    return isinstance(value, dict) and any(
        isinstance(entry, Tensor) or (name in KEYS and _has_tensors(entry)) for name, entry in value.items()
    )


def _tell(value: dict) -> str:
    return ", ".join(f"{name} ({_kind(entry)})" for name, entry in value.items()) or "nothing"


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"dict of {len(value)}"
    return "tensor" if isinstance(value, Tensor) else type(value).__name__.lstrip("_")


def _rebuild(storage: Storage, offset: int, shape: tuple, strides: tuple, *_: Any) -> Tensor:
    return Tensor(storage, offset, tuple(shape), tuple(strides))


def _rebuild_typed(storage: Storage, offset: int, shape: tuple, strides: tuple, *rest: Any) -> Tensor:
    # The storage counts bytes; the kind of number follows "requires grad" and the hooks.
    dtype = _DTYPES[rest[2].name]
    typed = storage._replace(dtype=dtype, size=storage.size // dtype.itemsize)
    return Tensor(typed, offset, tuple(shape), tuple(strides))


def _scalar(dtype: np.dtype, data: bytes) -> Any:
    return np.frombuffer(data, dtype, 1)[0].item()


def _dtype(code: str, *_: Any) -> np.dtype:
    if code[:1] not in "biufc":
        raise _Refused(f"numpy.dtype({code!r})")
    return np.dtype(code)


# What a pickle may "call", and what stands for the result. Nothing here reaches outside this file.
_CALLS: dict[str, Callable] = {
    "collections.OrderedDict": dict,
    "collections.defaultdict": lambda factory=None, *rest: dict(*rest),
    "collections.Counter": dict,
    "builtins.dict": dict,
    "builtins.set": set,
    "argparse.Namespace": _Namespace,
    "torch.Size": tuple,
    "torch.device": lambda *parts: ":".join(map(str, parts)),
    "torch._utils._rebuild_tensor": _rebuild,
    "torch._utils._rebuild_tensor_v2": _rebuild,
    "torch._utils._rebuild_tensor_v3": _rebuild_typed,
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
    "torch._utils._rebuild_parameter_with_state": lambda tensor, *_: tensor,
    "torch._tensor._rebuild_from_type_v2": lambda function, kind, arguments, state: _call(function, arguments),
    "numpy.dtype": _dtype,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.multiarray.scalar": _scalar,
    "_codecs.encode": lambda text, encoding: text.encode("latin1"),
}


def _call(function: Any, arguments: Any) -> Any:
    if not isinstance(function, _Name) or function.name not in _CALLS:
        raise _Refused(f"a call of {function.name if isinstance(function, _Name) else _kind(function)}")
    return _CALLS[function.name](*arguments)


def _name(name: str) -> _Name:
    name = name.replace("__builtin__.", "builtins.")  # Python 2
    if not any(name in known for known in (_CALLS, _STORAGES, _DTYPES, _MENTIONED)):
        raise _Refused(name)
    return _Name(name)


def _storage(description: Any) -> Storage:
    if not isinstance(description, tuple) or description[0] != "storage":
        raise _Refused("a whole module" if description[0] == "module" else f"a persistent {description[0]!r}")
    kind, key, _, size, *view = description[1:]
    start = view[0][1] if view and view[0] is not None else 0
    return Storage(str(key), _STORAGES[kind.name], size, start)


def _update(target: Any, state: Any) -> None:
    """What BUILD would set on an object: kept of a namespace only."""
    if isinstance(target, _Namespace):
        target.update(state)
    elif isinstance(target, np.dtype) and ">" in state:
        raise _Damaged("its numbers are big-endian")


def _follow(file: BinaryIO, storages: dict[str, Storage]) -> Any:
    """Follows one pickle to its end and returns its value; `storages` receives those that it mentions, by key."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def pop(count: int) -> list[Any]:
        """Takes the topmost `count` values off the stack."""
        if count > len(stack):
            raise IndexError("its stack is empty")
        values = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        return values

    def marked() -> list[Any]:
        """Takes what lies above the last mark."""
        return pop(len(stack) - marks.pop())

    def pairs(values: list[Any]) -> dict[Any, Any]:
        return dict(zip(values[::2], values[1::2], strict=True))

    for opcode, value, _ in pickletools.genops(file):
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                return stack.pop()
            case "MARK":
                marks.append(len(stack))
            case "POP":
                stack.pop()
            case "DUP":
                stack.append(stack[-1])
            case "POP_MARK":
                marked()
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[value] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[value])
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(opcode.name == "NEWTRUE")
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_SET":
                stack.append(set())
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(pop(int(opcode.name[-1]))))
            case "TUPLE":
                stack.append(tuple(marked()))
            case "LIST":
                stack.append(marked())
            case "DICT":
                stack.append(pairs(marked()))
            case "APPEND":
                (item,) = pop(1)
                stack[-1].append(item)
            case "APPENDS":
                items = marked()
                stack[-1].extend(items)
            case "ADDITEMS":
                items = marked()
                stack[-1].update(items)
            case "SETITEM":
                key, item = pop(2)
                stack[-1].update({key: item})
            case "SETITEMS":
                items = marked()
                stack[-1].update(pairs(items))
            case "GLOBAL":
                stack.append(_name(str(value).replace(" ", ".")))
            case "STACK_GLOBAL":
                stack.append(_name(".".join(pop(2))))
            case "REDUCE" | "NEWOBJ":
                function, arguments = pop(2)
                stack.append(_call(function, arguments))
            case "BUILD":
                (state,) = pop(1)
                _update(stack[-1], state)
            case "BINPERSID":
                storage = _storage(stack.pop())
                storages[storage.key] = storage
                stack.append(storage)
            case _ if isinstance(value, (int, float, str, bytes, bytearray)) and opcode.name not in _UNKNOWN:
                stack.append(value)
            case _:
                raise _Refused(f"the pickle instruction {opcode.name}")
    raise _Damaged("it ends early")
