"""Finds the methods of a family: one file each in its package, an entry point of another package, or a class by hand.

A new method is one new file: the module's name is the method's name, and nothing has to be registered. A package of
your own declares an entry point in the group named after the family's package, such as

    [project.entry-points."jaxprune.reduction"]
    longest = "my_package:Longest"
"""

import functools
import importlib
import importlib.metadata
import inspect
import math
import numbers
import pkgutil
import types
import typing
from collections.abc import Collection, Container, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from jaxprune.errors import UserError, quoted, require_options, unknown


def methods(package: ModuleType, base: type) -> dict[str, type]:
    """Returns {name: its subclass of `base`} for every method of the family in `package`.

    Raises:
      UserError: a file defines several public subclasses, or an entry point cannot be loaded or takes a name in use.
    """
    classes = {}
    for name in _modules_in(*package.__path__):
        if (cls := _defined_in(f"{package.__name__}.{name}", base)) is not None:
            classes[name] = cls
    for name, entry in entry_points(package.__name__, classes).items():
        classes[name] = load(entry, base)
    return {**classes, **_REGISTERED.get(package.__name__, {})}


# {package of a family: {name: class}} of this process.
_REGISTERED: dict[str, dict[str, type]] = {}


def register(package: ModuleType, base: type, name: str, cls: type) -> None:
    """Names a method of the family in `package` for this process; a name registered before gets the new class.

    Raises:
      UserError: the class is not a subclass of `base`, or another method has the name.
    """
    if not (inspect.isclass(cls) and issubclass(cls, base)):
        raise UserError(f"{cls!r} is not a subclass of {base.__name__}: register a class that is one.")
    registered = _REGISTERED.setdefault(package.__name__, {})
    if name not in registered and methods(package, base).get(name, cls) is not cls:
        raise UserError(f"{package.__name__} has a method {name!r} already: register yours by another name.")
    registered[name] = cls


@functools.cache
def _modules_in(*folders: str) -> tuple[str, ...]:
    return tuple(info.name for info in pkgutil.iter_modules(folders))


@functools.cache
def _defined_in(module_name: str, base: type) -> type | None:
    module = importlib.import_module(module_name)
    methods_defined = [
        cls
        for name, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, base) and cls is not base and cls.__module__ == module_name and not name.startswith("_")
    ]
    if len(methods_defined) > 1:
        names = ", ".join(cls.__name__ for cls in methods_defined)
        raise UserError(f"{module_name} defines {names}: a file holds one method; begin the helpers' names with _.")
    return methods_defined[0] if methods_defined else None


@functools.cache
def _installed(group: str) -> tuple[importlib.metadata.EntryPoint, ...]:
    return tuple(importlib.metadata.entry_points(group=group))


def entry_points(group: str, names_in_use: Container[str] = ()) -> dict[str, importlib.metadata.EntryPoint]:
    """Returns {name: entry point} for the entry points of other packages in a group such as "jaxprune.reduction".

    Args:
      names_in_use: names that are in use.

    Raises:
      UserError: an entry point takes a name that is in use, or two have the same name.
    """
    entries: dict[str, importlib.metadata.EntryPoint] = {}
    for entry in _installed(group):
        # The same package may be on sys.path twice.
        if entry.name in names_in_use or (entry.name in entries and entries[entry.name].value != entry.value):
            raise UserError(f"{entry.value} registers {group} {entry.name!r}, which exists already: rename it.")
        entries[entry.name] = entry
    return entries


def load(entry: importlib.metadata.EntryPoint, base: type) -> type:
    """Loads the class of an entry point.

    Raises:
      UserError: it cannot be imported, or is not a subclass of `base`.
    """
    try:
        cls = entry.load()
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"{entry.value}, which another package registers as {entry.group} {entry.name!r}, cannot be loaded "
            f"({error}): fix or uninstall that package."
        ) from error
    if not (inspect.isclass(cls) and issubclass(cls, base)):
        raise UserError(
            f"{entry.value}, registered as {entry.group} {entry.name!r}, is not a subclass of {base.__name__}: fix or "
            "uninstall that package."
        )
    return cls


def find(package: ModuleType, base: type, name: str, *, ways: str = "") -> type:
    """Returns the method called `name`; a `UserError` names the nearest one if there is none.

    Args:
      ways: the end of that message, on how to add a method.
    """
    by_name = methods(package, base)
    if name not in by_name:
        family = package.__name__.rpartition(".")[2]
        raise UserError(f"{unknown(f'{family} method', name, by_name)}{ways}")
    return by_name[name]


def signature(cls: type) -> dict[str, inspect.Parameter]:
    """Returns the arguments of a constructor by name, including those passed on to its bases as **kwargs."""
    by_name: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" in vars(base):
            declared = inspect.signature(vars(base)["__init__"]).parameters.values()
            named = (p for p in declared if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name != "self")
            by_name = {p.name: p for p in named} | by_name
            if all(p.kind is not p.VAR_KEYWORD for p in declared):
                break
    return by_name


def parameters(cls: type) -> set[str]:
    """Returns the names of a constructor's arguments, including those passed on to its bases as **kwargs."""
    return set(signature(cls))


def build(
    cls: type, arguments: dict[str, Any], *positional: Any, passed_on: Collection[str] = (), **always: Any
) -> Any:
    """Constructs `cls(*positional, **arguments, **always)`, after checking the names of the arguments.

    Args:
      passed_on: further names that the class accepts as **kwargs and passes on.

    Raises:
      UserError: an argument is unknown, in which case the message suggests the nearest one, or of another type.
    """
    check_arguments(cls, arguments, (parameters(cls) | set(passed_on)) - {"step", "rngs"})
    check_kinds(cls, arguments)
    return cls(*positional, **plain(arguments), **always)


def plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments with Python's numbers instead of NumPy's, such as the sizes of arrays in a sweep."""

    def of(value: Any) -> Any:
        if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
            return type(value)(map(of, value))
        return value.item() if isinstance(value, np.generic) else value

    return {name: of(value) for name, value in arguments.items()}


def check_arguments(cls: type, arguments: Collection[str], names: Collection[str]) -> None:
    """Checks the names of a constructor's arguments against those that it has, `names`.

    Raises:
      UserError: an argument is unknown; the message suggests the nearest one.
    """
    require_options(cls.__name__, arguments, sorted(names), word="argument")


_KINDS: dict[Any, tuple[type | tuple[type, ...], str]] = {
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    bool: ((bool, np.bool_), "True or False"),
    str: (str, "a text"),
    type(None): (type(None), "None"),
}


# Arguments that count something, and the least that they may be.
_SIZES = {
    **dict.fromkeys(("img_size", "patch_size", "window_size", "in_chans", "embed_dim", "num_heads", "kernel_size"), 1),
    **dict.fromkeys(("decoder_embed_dim", "decoder_num_heads", "num_frames", "votes", "grid", "dims"), 1),
    **dict.fromkeys(("depth", "depths", "decoder_depth", "num_classes", "reg_tokens"), 0),
}
_LARGEST = 2**20
_POSITIVE = ("mlp_ratio", "norm_eps", "decoder_mlp_ratio")


def _whole_numbers(value: Any) -> list[int]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [int(number) for number in values if isinstance(number, numbers.Integral) and not isinstance(number, bool)]


def check_kinds(cls: type, arguments: Mapping[str, Any]) -> None:
    """Checks the values of a constructor's arguments against its annotations with numbers, texts and tuples of these.

    Raises:
      UserError: a value is of another type.
    """
    declared = signature(cls)
    for name, value in arguments.items():
        annotation = declared[name].annotation if name in declared else Any
        if not _fits(value, annotation):
            raise UserError(f"{cls.__name__}: {name}={quoted(value)} is not {_described(annotation)}.")
        least = _SIZES.get(name)
        if name in _POSITIVE and isinstance(value, numbers.Real) and not 0 < value < math.inf:
            raise UserError(f"{cls.__name__}: {name}={value} is out of range: use a number above 0.")
        if least is not None and not all(least <= size <= _LARGEST for size in _whole_numbers(value)):
            raise UserError(f"{cls.__name__}: {name}={quoted(value)} is not a size: use whole numbers from {least} on.")


def _fits(value: Any, annotation: Any) -> bool:
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _KINDS:
        is_bool = isinstance(value, (bool, np.bool_))
        return isinstance(value, _KINDS[annotation][0]) and (annotation is bool or not is_bool)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, choice) for choice in inside)
    if origin is typing.Literal:
        return value in inside
    if origin is Sequence:
        return (
            isinstance(value, Sequence | np.ndarray)
            and not isinstance(value, str | bytes)
            and all(_fits(item, inside[0]) for item in value)
        )
    if origin is not tuple:
        return True  # classes, functions and arrays fail where they are used
    if not isinstance(value, (tuple, list)):
        return False
    kinds = inside[:1] * len(value) if inside[-1:] == (...,) else inside
    return len(kinds) == len(value) and all(map(_fits, value, kinds))


def _described(annotation: Any) -> str:
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _KINDS:
        return _KINDS[annotation][1]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_described, inside))
    if origin is typing.Literal:
        return " or ".join(map(repr, inside))
    if inside[-1:] == (...,) or origin is Sequence:
        return f"several values, each {_described(inside[0])}"
    return f"({', '.join(map(_described, inside))})" if origin is tuple else getattr(annotation, "__name__", "usable")
