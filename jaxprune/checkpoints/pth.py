"""Reads files of `torch.save`, without PyTorch and without running any code in a file.

A pickle is a program: it builds values on a stack and may call any function by name. The small interpreter here calls
nothing. Names are placeholders on the stack, and only those of tensors, storages and plain containers are allowed;
any other raises an error. Tensors stay descriptions until they are selected, so an optimizer's state next to the
weights costs no memory.

A small file can describe something huge: deeply nested values, tensors that repeat a number, compressed zeros. So only
flat values are traversed, hashed or printed, and all work has a budget.
"""

import io
import itertools
import logging
import math
import pickletools
import re
import zipfile
from collections.abc import Callable, Iterable, Sized
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxprune.errors import UserError, nearest

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

logger = logging.getLogger(__name__)

# Budgets of a file, in addition to those by its size.
_STEPS = 2**20  # of the pickle machine: a second; a checkpoint has some dozen a tensor
_BYTES_OF_STEP = 8  # of a file, which bring another step
_BYTES = 2**26  # of tensors: small ones that are views of one number are common
_DEPTH = 16  # dicts around the weights
_DIMENSIONS = 64  # as many as NumPy has
_NAMES_SHOWN = 12

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
# Calls a function with arguments: (function, class of the result, arguments, state).
_OF_CLASS = "torch._tensor._rebuild_from_type_v2"
_MENTIONED = frozenset({_OF_CLASS, "torch.Tensor", "torch.nn.parameter.Parameter"})
# Instructions whose argument is not the value that they push.
_UNKNOWN = frozenset({"INST", "PERSID", "EXT1", "EXT2", "EXT4"})
_DTYPES = {f"torch.{np.dtype(dtype).name}": np.dtype(dtype) for dtype in (*_TYPES.values(), np.uint16, np.uint32)}


class Storage(NamedTuple):
    """A run of `size` numbers that tensors are views of; `start` is where a view of old PyTorch begins."""

    key: str
    dtype: np.dtype
    size: int
    start: int = 0


class Tensor(NamedTuple):
    """A tensor that has not been read; offset and strides are in elements of its storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Name(NamedTuple):
    """A Python name in a pickle."""

    name: str


class _Namespace(dict):
    """The arguments of a script, `argparse.Namespace`."""


class _Refused(Exception):
    """A pickle names something that is not on the list."""


class _Damaged(Exception):
    """Why a file of PyTorch cannot be read."""


class _Budget:
    """The remaining budget of a file.

    Args:
      size: size of the file in bytes.
    """

    def __init__(self, size: int):
        self._steps = _STEPS + size // _BYTES_OF_STEP
        self._bytes = _BYTES + 2 * size

    def step(self, count: int = 1) -> None:
        """Pays for steps of the pickle machine; one that copies `count` values costs as many."""
        self._steps -= count
        if self._steps < 0:
            raise _Damaged("its pickle takes more steps than is plausible for a file of this size")

    def hold(self, count: int) -> None:
        """Pays for a tensor of `count` bytes."""
        self._bytes -= count
        if self._bytes < 0:
            raise _Damaged("its tensors repeat what is stored far beyond the size of the file")


def read_pth(path: Path, key: str | tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    """Reads the tensors of a `.pth`, `.pt`, `.bin` or `.ckpt` file under their names; both of PyTorch's formats.

    Weights often lie in a dict among other things. Taken is the first of `KEYS` that is a dict with tensors (and
    inside of it likewise), else the tensors that the dict itself holds.

    Args:
      key: the entry to take in place of that; or several, whose tensors are then called `entry.name`: those of them
        that are there, and without any as by default.

    Raises:
      UserError: the file is truncated, is not a file of PyTorch, has no such entry, or holds more than data; what it
        names is not run.
    """
    try:
        with path.open("rb") as file:
            zipped = file.read(4) == b"PK\x03\x04"
            file.seek(0)
            budget = _Budget(path.stat().st_size)
            value, load = (_open_zip if zipped else _open_legacy)(file, budget)
            return _materialise(_choose(value, key, path), load, budget)
    except UserError:
        raise
    except _Refused as refusal:
        raise UserError(
            f"{path} contains {_clipped(str(refusal), 120)}, which is neither a tensor nor a plain value: refused, and "
            "nothing of it was run. Save the tensors alone in PyTorch: torch.save(model.state_dict(), path)."
        ) from None
    except Exception as error:  # a damaged file can break anything
        why = _clipped(str(error), 160) or type(error).__name__
        raise UserError(
            f"{path} cannot be read ({why}): it is truncated, damaged or not a PyTorch file; fetch it again."
        ) from error


def _open_zip(file: BinaryIO, budget: _Budget) -> tuple[Any, Callable[[Storage], bytes]]:
    archive = zipfile.ZipFile(file)
    members = {info.filename: info for info in archive.infolist()}
    pickled = next((name for name in members if name.split("/", 1)[-1] == "data.pkl"), None)
    if pickled is None:
        raise _Damaged("a zip archive without data.pkl")
    root = pickled.removesuffix("data.pkl")

    def read(member: zipfile.ZipInfo) -> bytes:
        if member.compress_type != zipfile.ZIP_STORED:
            raise _Damaged(f"{member.filename} is compressed, which PyTorch does not do: unpack it, and zip -0 it")
        budget.hold(member.file_size)
        return archive.read(member)

    if f"{root}constants.pkl" in members:
        raise _Refused("a TorchScript program")
    if f"{root}byteorder" in members and read(members[f"{root}byteorder"]) != b"little":
        raise _Damaged("its numbers are big-endian")

    def load(storage: Storage) -> bytes:
        member = members.get(f"{root}data/{storage.key}")
        size, found = storage.size * storage.dtype.itemsize, 0 if member is None else member.file_size
        if member is None or found != size:
            raise _Damaged(f"{found} of {size} bytes of storage {storage.key}")
        return read(member)

    return _follow(io.BytesIO(read(members[pickled])), {}, budget), load


def _open_legacy(file: BinaryIO, budget: _Budget) -> tuple[Any, Callable[[Storage], bytes]]:
    if _follow(file, {}, budget) != _LEGACY_MAGIC:
        raise _Damaged("torch.save did not write it")
    _follow(file, {}, budget)  # the version of the protocol
    if not _follow(file, {}, budget)["little_endian"]:
        raise _Damaged("its numbers are big-endian")
    storages: dict[str, Storage] = {}
    value = _follow(file, storages, budget)
    # Behind the pickles lie the storages, each with its count of numbers in front.
    places, end = {}, 0
    for key in map(_flat_key, _follow(file, {}, budget)):
        size = int.from_bytes(file.read(8), "little") * storages[key].dtype.itemsize
        places[key] = (file.tell(), size)
        end = file.seek(size, 1)
    if (there := file.seek(0, 2)) < end:
        raise _Damaged(f"{there} of {end} bytes")

    def load(storage: Storage) -> bytes:
        offset, size = places[storage.key]
        budget.hold(size)
        file.seek(offset)
        return file.read(size)

    return value, load


def _materialise(wanted: dict[str, Tensor], load: Callable[[Storage], bytes], budget: _Budget) -> dict[str, np.ndarray]:
    """Reads tensors, each storage once; tensors that are the same view of one are the same array."""
    views: dict[Tensor, np.ndarray] = {}
    key, flat = None, b""
    for name, tensor in sorted(wanted.items(), key=lambda item: item[1].storage.key):
        if tensor in views:
            continue
        if tensor.storage.key != key:
            key, flat = tensor.storage.key, load(tensor.storage)
        views[tensor] = _view(np.frombuffer(flat, tensor.storage.dtype), tensor, name, budget)
    return {name: views[tensor] for name, tensor in wanted.items()}


def _view(flat: np.ndarray, tensor: Tensor, name: str, budget: _Budget) -> np.ndarray:
    first = tensor.storage.start + tensor.offset
    if len(tensor.shape) != len(tensor.strides) or min((first, *tensor.shape, *tensor.strides)) < 0:
        raise _Damaged(f"{name} has no shape")
    if 0 in tensor.shape:
        return np.zeros(tensor.shape, flat.dtype)
    # as_strided would silently read beyond the end.
    if first + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True)) >= len(flat):
        raise _Damaged(f"{name} lies beyond the end of its storage")
    budget.hold(math.prod(tensor.shape) * flat.itemsize)
    strides = [stride * flat.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(flat[first:], tensor.shape, strides).copy()


def _choose(value: Any, key: str | tuple[str, ...] | None, path: Path) -> dict[str, Tensor]:
    if not isinstance(value, dict):
        raise UserError(f"{path} holds one {_kind(value)} and no names: save a state_dict.")
    if isinstance(key, tuple):
        several = [name for name in key if _has_tensors(value.get(name))]
        if len(several) > 1:
            return {f"{name}.{part}": entry for name in several for part, entry in _choose(value, name, path).items()}
    elif key is not None:
        if not _has_tensors(value.get(key)):
            there = [name for name in value if isinstance(name, str)][:_NAMES_SHOWN]
            raise UserError(f"{path} has no tensors under {key!r}.{nearest(key, there)} It has: {_tell(value)}.")
        value = value[key]
    for _ in range(_DEPTH):
        there = [name for name in KEYS if _has_tensors(value.get(name))]
        if not there:
            break
        if len(there) > 1:
            logger.info("%s: taking %r; key= chooses another of %s", path, there[0], ", ".join(there))
        value = value[there[0]]
    else:
        raise _Damaged(f"its weights lie more than {_DEPTH} dicts deep")
    tensors = {str(name): entry for name, entry in value.items() if isinstance(entry, Tensor)}
    if not tensors:
        raise UserError(f"{path} has no tensors where weights usually are; choose with key=. It has: {_tell(value)}.")
    return tensors


def _has_tensors(value: Any) -> bool:
    """Whether there are tensors in a dict, or in those inside of it under `KEYS`; each of them is looked at once."""
    pending, seen = [value], set()
    while pending:
        entry = pending.pop()
        if not isinstance(entry, dict) or id(entry) in seen:
            continue
        seen.add(id(entry))
        if any(isinstance(inside, Tensor) for inside in entry.values()):
            return True
        pending += [entry[name] for name in KEYS if name in entry]
    return False


def _tell(value: dict) -> str:
    shown = itertools.islice(value.items(), _NAMES_SHOWN)
    more = f", and {len(value) - _NAMES_SHOWN} more" if len(value) > _NAMES_SHOWN else ""
    return ", ".join(f"{_clipped(str(name))} ({_kind(entry)})" for name, entry in shown) + more or "nothing"


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"dict of {len(value)}"
    return "tensor" if isinstance(value, Tensor) else type(value).__name__.lstrip("_")


def _clipped(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[:length] + "…"


# Hashing, comparing and printing a value that contains others visits them again and again, and a deep one ends the
# process. What does so here is flat.
_SCALARS = (str, int, float, bytes, type(None), _Name, np.dtype)


def _flat_key(key: Any) -> Any:
    """Returns the key of a dict or a member of a set."""
    parts = key if type(key) is tuple else (key,)
    if not all(isinstance(part, (*_SCALARS, Tensor, Storage)) for part in parts):
        raise _Damaged(f"a {_kind(key)} that contains other containers is used as a key")
    return key


def _text(value: Any) -> str:
    if not isinstance(value, _SCALARS):
        raise _Damaged(f"a {_kind(value)} where a text belongs")
    return str(value)


def _count(value: Any) -> int:
    if not isinstance(value, int):
        raise _Damaged(f"a {_kind(value)} where a whole number belongs")
    return value


def _sizes(values: Any) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)) or len(values) > _DIMENSIONS:
        raise _Damaged(f"a {_kind(values)} where a shape belongs")
    return tuple(map(_count, values))


def _dict(*given: Any) -> dict[Any, Any]:
    """`dict` of nothing, of a dict, or of pairs."""
    if not given:
        return {}
    (pairs,) = given
    return {_flat_key(key): value for key, value in (pairs.items() if isinstance(pairs, dict) else pairs)}


def _namespace(*given: Any) -> _Namespace:
    return _Namespace(_dict(*given))


def _rebuild(storage: Storage, offset: int, shape: tuple, strides: tuple, *_: Any) -> Tensor:
    if not isinstance(storage, Storage):
        raise _Damaged(f"a tensor of a {_kind(storage)}")
    return Tensor(storage, _count(offset), _sizes(shape), _sizes(strides))


def _rebuild_typed(storage: Storage, offset: int, shape: tuple, strides: tuple, *rest: Any) -> Tensor:
    # The storage counts bytes; the kind of number follows "requires grad" and the hooks.
    dtype = _DTYPES[rest[2].name]
    typed = storage._replace(dtype=dtype, size=storage.size // dtype.itemsize)
    return _rebuild(typed, offset, shape, strides)


def _scalar(dtype: np.dtype, data: bytes) -> Any:
    return np.frombuffer(data, dtype, 1)[0].item()


def _dtype(code: str, *_: Any) -> np.dtype:
    if not re.fullmatch(r"[biufc]\d{1,2}", _text(code)):
        raise _Refused(f"numpy.dtype({_text(code)!r})")
    return np.dtype(code)


# What a pickle may "call", and what stands for the result. Nothing here reaches outside this file.
_CALLS: dict[str, Callable] = {
    "collections.OrderedDict": _dict,
    "collections.defaultdict": lambda factory=None, *rest: _dict(*rest),
    "collections.Counter": _dict,
    "builtins.dict": _dict,
    "builtins.set": lambda members=(): set(map(_flat_key, members)),
    "argparse.Namespace": _namespace,
    "torch.Size": tuple,
    "torch.device": lambda *parts: ":".join(map(_text, parts)),
    "torch._utils._rebuild_tensor": _rebuild,
    "torch._utils._rebuild_tensor_v2": _rebuild,
    "torch._utils._rebuild_tensor_v3": _rebuild_typed,
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
    "torch._utils._rebuild_parameter_with_state": lambda tensor, *_: tensor,
    "numpy.dtype": _dtype,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.multiarray.scalar": _scalar,
    "_codecs.encode": lambda text, encoding: text.encode("latin1"),
}


def _call(function: Any, arguments: Any, budget: _Budget) -> Any:
    while isinstance(function, _Name) and function.name == _OF_CLASS:
        budget.step()
        function, _, arguments, _ = arguments
    if not isinstance(function, _Name) or function.name not in _CALLS:
        raise _Refused(f"a call of {function.name if isinstance(function, _Name) else _kind(function)}")
    budget.step(_extent(arguments))
    return _CALLS[function.name](*arguments)


def _extent(arguments: Iterable[Any]) -> int:
    """How many values or bytes a call with these arguments may copy."""
    return sum(len(argument) for argument in arguments if isinstance(argument, Sized))


def _name(name: str) -> _Name:
    name = name.replace("__builtin__.", "builtins.")  # Python 2
    if not any(name in known for known in (_CALLS, _STORAGES, _DTYPES, _MENTIONED)):
        raise _Refused(name)
    return _Name(name)


def _storage(description: Any) -> Storage:
    if not isinstance(description, tuple) or description[0] != "storage":
        first = description[0] if isinstance(description, tuple) and description else None
        raise _Refused("a whole module" if first == "module" else f"a persistent {_text(first)!r}")
    kind, key, _, size, *view = description[1:]
    start = _count(view[0][1]) if view and view[0] is not None else 0
    return Storage(_text(key), _STORAGES[kind.name], _count(size), start)


def _update(target: Any, state: Any) -> None:
    """What BUILD would set on an object: kept of a namespace only."""
    if isinstance(target, _Namespace):
        target.update(_dict(state))
    elif isinstance(target, np.dtype) and ">" in state:
        raise _Damaged("its numbers are big-endian")


def _follow(file: BinaryIO, storages: dict[str, Storage], budget: _Budget) -> Any:
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
        return dict(zip(map(_flat_key, values[::2]), values[1::2], strict=True))

    for opcode, value, _ in pickletools.genops(file):
        budget.step()
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
                stack[-1].update(map(_flat_key, items))
            case "SETITEM":
                key, item = pop(2)
                stack[-1].update({_flat_key(key): item})
            case "SETITEMS":
                items = marked()
                stack[-1].update(pairs(items))
            case "GLOBAL":
                stack.append(_name(str(value).replace(" ", ".")))
            case "STACK_GLOBAL":
                stack.append(_name(".".join(pop(2))))
            case "REDUCE" | "NEWOBJ":
                function, arguments = pop(2)
                stack.append(_call(function, arguments, budget))
            case "BUILD":
                (state,) = pop(1)
                budget.step(_extent((state,)))
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
