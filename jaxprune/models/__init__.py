"""Networks, by the names timm gives them."""

import importlib
import pkgutil
from typing import Any

from flax import nnx

from jaxprune import plugins
from jaxprune.errors import unknown


def names() -> dict[str, str]:
    """Returns {model name: where its class is}: a module of this package (its NETWORK), or another package's class.

    A package of one's own adds a network by an entry point in the group "jaxprune.models" (name → class).
    """
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found.update(dict.fromkeys(getattr(module, "variants", dict)(), info.name))
    return {**found, **{name: entry.value for name, entry in plugins.entry_points(__name__, found).items()}}


def arguments(name: str) -> dict[str, Any]:
    """Returns what a model's name stands for; a `UserError` names the nearest one if there is none.

    The name of another package's class stands for the defaults of that class.
    """
    known = names()
    if name not in known:
        raise unknown("model", name, known)
    if name in plugins.entry_points(__name__):
        return {}
    return dict(importlib.import_module(f"{__name__}.{known[name]}").variants()[name])


def create(name: str, *, rngs: nnx.Rngs, **overrides: Any) -> Any:
    """Builds a model, freshly initialised.

    Args:
      name: such as "vit_small_patch16_224", or "vit" with all arguments given.
      overrides: arguments of the model's class, in place of what the name stands for.
    """
    return plugins.build(_class_of(name), {**arguments(name), **overrides}, rngs=rngs)


def _class_of(name: str) -> type:
    known = names()
    if name not in known:
        raise unknown("model", name, known)
    if (entry := plugins.entry_points(__name__).get(name)) is not None:
        return plugins.load(entry, nnx.Module)
    return importlib.import_module(f"{__name__}.{known[name]}").NETWORK


__all__ = ["arguments", "create", "names"]
