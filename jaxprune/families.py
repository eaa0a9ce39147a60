"""Finds the methods of a family: every module of its package that defines a subclass of its protocol.

Adding a method is adding one file: the module's name is the method's name, and nothing has to be registered.
"""

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

from jaxprune.errors import UserError, nearest, unknown


def methods(package: ModuleType, base: type) -> dict[str, type]:
    """Returns {module name: its subclass of `base`} for every method of the family in `package`."""
    found = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        own = [
            cls
            for _, cls in inspect.getmembers(module, inspect.isclass)
            if issubclass(cls, base) and cls is not base and cls.__module__ == module.__name__
        ]
        if len(own) > 1:
            # A file may hold helpers that are subclasses too; the method is the one defined last.
            own = [max(own, key=lambda cls: inspect.getsourcelines(cls)[1])]
        if own:
            found[info.name] = own[0]
    return found


def find(package: ModuleType, base: type, name: str) -> type:
    """Returns the method called `name`; a `UserError` names the nearest one if there is none."""
    known = methods(package, base)
    if name not in known:
        raise unknown(f"{package.__name__.rsplit('.', 1)[-1]} method", name, known)
    return known[name]


def build(cls: type, arguments: dict[str, Any], *given: Any, **always: Any) -> Any:
    """Constructs `cls(*given, **arguments, **always)`; an argument it does not have is refused by name.

    Raises:
      UserError: names the argument that is unknown and the nearest one that is not.
    """
    known = set(inspect.signature(cls.__init__).parameters) - {"self", "stage", "rngs"}
    for name in arguments:
        if name not in known:
            raise UserError(
                f"{cls.__name__} has no argument {name!r}.{nearest(name, known)} It has: {', '.join(sorted(known))}."
            )
    return cls(*given, **arguments, **always)
