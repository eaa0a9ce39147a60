"""Finds the methods of a family: every module of its package that defines a subclass of its protocol.

Adding a method is adding one file: the module's name is the method's name, and nothing has to be registered.
"""

import importlib
import inspect
import pkgutil
from types import ModuleType

from jaxprune.errors import unknown


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
        if own:
            # A file may hold helpers that are subclasses too; the method is the one defined last.
            found[info.name] = max(own, key=lambda cls: inspect.getsourcelines(cls)[1])
    return found


def find(package: ModuleType, base: type, name: str) -> type:
    """Returns the method called `name`; a `UserError` names the nearest one if there is none."""
    known = methods(package, base)
    if name not in known:
        raise unknown(f"{package.__name__.rsplit('.', 1)[-1]} method", name, known)
    return known[name]
