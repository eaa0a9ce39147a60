"""Finds the methods of a family: one file each in its package, or an entry point of another package.

A new method is one new file: the module's name is the method's name, and nothing has to be registered. A package of
your own declares an entry point in the group named after the family's package, such as

    [project.entry-points."jaxprune.reduction"]
    longest = "my_package:Longest"
"""

import functools
import importlib
import importlib.metadata
import inspect
import pkgutil
from collections.abc import Collection, Container
from types import ModuleType
from typing import Any

from jaxprune.errors import UserError, nearest, unknown


def methods(package: ModuleType, base: type) -> dict[str, type]:
    """Returns {name: its subclass of `base`} for every method of the family in `package`.

    Raises:
      UserError: a file defines several public subclasses, or an entry point cannot be loaded or takes a name in use.
    """
    classes = {}
    for info in pkgutil.iter_modules(package.__path__):
        if (cls := _defined_in(f"{package.__name__}.{info.name}", base)) is not None:
            classes[info.name] = cls
    for name, entry in entry_points(package.__name__, classes).items():
        classes[name] = load(entry, base)
    return classes


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


def find(package: ModuleType, base: type, name: str) -> type:
    """Returns the method called `name`; a `UserError` names the nearest one if there is none."""
    available = methods(package, base)
    if name not in available:
        raise unknown(f"{package.__name__.rsplit('.', 1)[-1]} method", name, available)
    return available[name]


def parameters(cls: type) -> set[str]:
    """Returns the names of a constructor's arguments, including those passed on to its bases as **kwargs."""
    names: set[str] = set()
    for base in cls.__mro__:
        if "__init__" in vars(base):
            signature = inspect.signature(vars(base)["__init__"]).parameters.values()
            names.update(
                parameter.name
                for parameter in signature
                if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            )
            if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in signature):
                break
    return names - {"self"}


def build(
    cls: type, arguments: dict[str, Any], *positional: Any, passed_on: Collection[str] = (), **always: Any
) -> Any:
    """Constructs `cls(*positional, **arguments, **always)`, after checking the names of the arguments.

    Args:
      passed_on: further names that the class accepts as **kwargs and passes on.

    Raises:
      UserError: an argument is unknown; the message suggests the nearest one.
    """
    accepted = (parameters(cls) | set(passed_on)) - {"step", "rngs"}
    for name in arguments:
        if name not in accepted:
            raise UserError(
                f"{cls.__name__} has no argument {name!r}.{nearest(name, accepted)} "
                f"It has: {', '.join(sorted(accepted))}."
            )
    return cls(*positional, **arguments, **always)
