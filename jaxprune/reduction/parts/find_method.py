"""Reduction methods by name: files of the package, entry points of other packages, and classes named at run time."""

import inspect
from typing import Any

import jaxprune.reduction as family
from jaxprune import plugins
from jaxprune.errors import UserError
from jaxprune.reduction.parts.base import Reducer, require_sound

_WAYS = (
    " For a method of your own, give its class, Plan(MyMethod, …), or name it by jaxprune.reduction.register(name, "
    "MyMethod), by an entry point in the group jaxprune.reduction, or by a file in jaxprune/reduction."
)


def methods() -> dict[str, type[Reducer]]:
    """Returns {name: class} of every reduction method."""
    return plugins.methods(family, Reducer)


def register(name: str, cls: type) -> None:
    """Names a method for this process, so that plans as text, and what is saved with a network, can name it too.

    A name that was registered before gets the new class.

    >>> register("my_method", MyMethod)  # doctest: +SKIP
    >>> Plan(MyMethod, keep_rate=0.5, reduction_loc=(3,)).text  # doctest: +SKIP
    'my_method@3:keep_rate=0.5'

    Raises:
      UserError: the class is no `Reducer`, or another method has the name.
    """
    if not name.isidentifier():
        raise UserError(f"{name!r} cannot name a method in a plan: use letters, digits and _, such as 'my_method'.")
    plugins.register(family, Reducer, name, cls)


def method_class(method: str | type) -> type[Reducer]:
    """Returns the class of a method, by its name or as it is.

    Raises:
      UserError: there is no such method, or the class is not a `Reducer`, or not a sound one.
    """
    if isinstance(method, str):
        method = plugins.find(family, Reducer, method, ways=_WAYS)
    if inspect.isclass(method) and issubclass(method, Reducer):
        require_sound(method)
        return method
    raise UserError(
        f"{method!r} is not a method: give a name such as 'topk', or a subclass of jaxprune.reduction.Reducer."
    )


def method_name(cls: type[Reducer]) -> str | None:
    """Returns the name of a method; None for a class without one."""
    return next((name for name, named in methods().items() if named is cls), None)


def shown_name(cls: Any) -> str:
    """Returns the name of a method, or of its class, for messages."""
    return method_name(cls) or cls.__name__
