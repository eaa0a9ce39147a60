"""Networks, by the names timm gives them."""

import importlib
import pkgutil
from typing import Any

from flax import nnx

from jaxprune import plugins
from jaxprune.errors import unknown
from jaxprune.nn.recipe import remember
from jaxprune.preprocessing import Preprocessing


def names() -> dict[str, str]:
    """Returns {model name: module of this package that defines its class, as NETWORK}."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found.update(dict.fromkeys(getattr(module, "variants", dict)(), info.name))
    return found


def arguments(name: str) -> dict[str, Any]:
    """Returns what a model's name stands for; a `UserError` names the nearest one if there is none."""
    known = names()
    if name not in known:
        raise unknown("model", name, known)
    return dict(importlib.import_module(f"{__name__}.{known[name]}").variants()[name])


def create(name: str, *, rngs: nnx.Rngs, **overrides: Any) -> Any:
    """Builds a model, freshly initialised; it knows how its images are prepared (`model.preprocessing`).

    >>> from flax import nnx
    >>> create("deit_tiny_patch16_224", depth=1, rngs=nnx.Rngs(0)).preprocessing.crop_pct
    0.875

    Args:
      name: such as "vit_small_patch16_224", or "vit" with all arguments given.
      overrides: arguments of the model's class, in place of what the name stands for.
    """
    chosen = {**arguments(name), **overrides}
    module = importlib.import_module(f"{__name__}.{names()[name]}")
    network = plugins.build(module.NETWORK, chosen, rngs=rngs)
    network.preprocessing = _preprocessing(module, name, chosen)
    return remember(network, "model", {"name": name, **overrides})


def _preprocessing(module: Any, name: str, chosen: dict[str, Any]) -> Preprocessing:
    if hasattr(module, "preprocessing"):
        return module.preprocessing(name, chosen)
    return Preprocessing((224, 224), mean=module.NETWORK.mean, std=module.NETWORK.std)


__all__ = ["Preprocessing", "arguments", "create", "names"]
