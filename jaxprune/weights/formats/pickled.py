"""Interprets the pickles of `torch.save` without running any code in them.

A pickle is a program: it builds values on a stack and may call any function by name. The small interpreter here calls
nothing. Names are placeholders on the stack, and only those of tensors, storages and plain containers are allowed;
any other raises an error. Tensors stay descriptions until they are selected, so an optimizer's state next to the
weights costs no memory.

A small file can describe something huge: deeply nested values, tensors that repeat a number. So only flat values are
traversed, hashed or printed, and all work has a budget.
"""

import pickletools
import re
from collections.abc import Callable, Iterable, Sized
from typing import Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np

# Budgets of a file, in addition to those by its size.
_STEPS = 2**20  # of the interpreter: about a second; a checkpoint takes a few dozen per tensor
_BYTES_PER_STEP = 8  # size of a file that allows one step more
_BYTES = 2**26  # of tensors: small ones that are views of one number are common
_DIMENSIONS = 64  # NumPy's maximum

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
    """`size` numbers that tensors are views of; `start` is where a view of an old PyTorch version begins."""

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


class Refused(Exception):
    """A pickle names something that is not allowed."""


class Damaged(Exception):
    """The reason why a file of PyTorch cannot be read."""


class Budget:
    """The remaining budget of a file.

    Args:
      size: size of the file in bytes.
    """

    def __init__(self, size: int):
        self._steps = _STEPS + size // _BYTES_PER_STEP
        self._bytes = _BYTES + 2 * size

    def step(self, count: int = 1) -> None:
        """Takes steps of the interpreter from the budget; one that copies `count` values costs as many."""
        self._steps -= count
        if self._steps < 0:
            raise Damaged("its pickle takes more steps than is plausible for a file of this size")

    def hold(self, count: int) -> None:
        """Takes a tensor of `count` bytes from the budget."""
        self._bytes -= count
        if self._bytes < 0:
            raise Damaged("its tensors repeat what is stored far beyond the size of the file")


def kind_of(value: Any) -> str:
    if isinstance(value, dict):
        return f"dict of {len(value)}"
    return "tensor" if isinstance(value, Tensor) else type(value).__name__.lstrip("_")


# Hashing, comparing or printing nested values can take exponential time, and a deep one ends the process. Only these
# flat values are hashed, compared or printed.
_SCALARS = (str, int, float, bytes, type(None), _Name, np.dtype)


def flat_key(key: Any) -> Any:
    """Checks the key of a dict or the member of a set, and returns it."""
    parts = key if type(key) is tuple else (key,)
    if not all(isinstance(part, (*_SCALARS, Tensor, Storage)) for part in parts):
        raise Damaged(f"a {kind_of(key)} that contains other containers is used as a key")
    return key


def _text(value: Any) -> str:
    if not isinstance(value, _SCALARS):
        raise Damaged(f"a {kind_of(value)} instead of a text")
    return str(value)


def _count(value: Any) -> int:
    if not isinstance(value, int):
        raise Damaged(f"a {kind_of(value)} instead of an integer")
    return value


def _sizes(values: Any) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)) or len(values) > _DIMENSIONS:
        raise Damaged(f"a {kind_of(values)} instead of a shape")
    return tuple(map(_count, values))


def _dict(*arguments: Any) -> dict[Any, Any]:
    """`dict` of nothing, a dict, or pairs."""
    if not arguments:
        return {}
    (pairs,) = arguments
    return {flat_key(key): value for key, value in (pairs.items() if isinstance(pairs, dict) else pairs)}


def _namespace(*arguments: Any) -> _Namespace:
    return _Namespace(_dict(*arguments))


def _rebuild(storage: Storage, offset: int, shape: tuple, strides: tuple, *_: Any) -> Tensor:
    if not isinstance(storage, Storage):
        raise Damaged(f"a tensor of a {kind_of(storage)}")
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
        raise Refused(f"numpy.dtype({_text(code)!r})")
    return np.dtype(code)


# The functions that a pickle may "call", and what makes the result. None of them reaches beyond this module.
_CALLS: dict[str, Callable] = {
    "collections.OrderedDict": _dict,
    "collections.defaultdict": lambda factory=None, *rest: _dict(*rest),
    "collections.Counter": _dict,
    "builtins.dict": _dict,
    "builtins.set": lambda members=(): set(map(flat_key, members)),
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


def _call(function: Any, arguments: Any, budget: Budget) -> Any:
    while isinstance(function, _Name) and function.name == _OF_CLASS:
        budget.step()
        function, _, arguments, _ = arguments
    if not isinstance(function, _Name) or function.name not in _CALLS:
        raise Refused(f"a call of {function.name if isinstance(function, _Name) else kind_of(function)}")
    budget.step(_extent(arguments))
    return _CALLS[function.name](*arguments)


def _extent(arguments: Iterable[Any]) -> int:
    """The number of values or bytes that a call with these arguments may copy."""
    return sum(len(argument) for argument in arguments if isinstance(argument, Sized))


def _name(name: str) -> _Name:
    name = name.replace("__builtin__.", "builtins.")  # Python 2
    if not any(name in names for names in (_CALLS, _STORAGES, _DTYPES, _MENTIONED)):
        raise Refused(name)
    return _Name(name)


def _storage(description: Any) -> Storage:
    if not isinstance(description, tuple) or description[0] != "storage":
        first = description[0] if isinstance(description, tuple) and description else None
        raise Refused("a whole module" if first == "module" else f"a persistent {_text(first)!r}")
    kind, key, _, size, *view = description[1:]
    start = _count(view[0][1]) if view and view[0] is not None else 0
    return Storage(_text(key), _STORAGES[kind.name], _count(size), start)


def _update(target: Any, state: Any) -> None:
    """Sets the state of an object (BUILD), of a namespace only."""
    if isinstance(target, _Namespace):
        target.update(_dict(state))
    elif isinstance(target, np.dtype) and ">" in state:
        raise Damaged("its numbers are big-endian")


def follow(file: BinaryIO, storages: dict[str, Storage], budget: Budget) -> Any:
    """Interprets one pickle and returns its value; the storages that it refers to are added to `storages`, by key."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def pop(count: int) -> list[Any]:
        """Removes the topmost `count` values from the stack."""
        if count > len(stack):
            raise IndexError("its stack is empty")
        values = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        return values

    def marked() -> list[Any]:
        """Removes the values above the last mark."""
        return pop(len(stack) - marks.pop())

    def pairs(values: list[Any]) -> dict[Any, Any]:
        return dict(zip(map(flat_key, values[::2]), values[1::2], strict=True))

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
                stack[-1].update(map(flat_key, items))
            case "SETITEM":
                key, item = pop(2)
                stack[-1].update({flat_key(key): item})
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
                raise Refused(f"the pickle instruction {opcode.name}")
    raise Damaged("it ends early")
