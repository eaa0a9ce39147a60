"""Networks, by the names timm gives them."""

import importlib
import pkgutil
from typing import Any

from flax import nnx

from jaxprune import plugins
from jaxprune.errors import UserError, unknown
from jaxprune.models.vit_names import not_built
from jaxprune.nn.patch_embed import pair
from jaxprune.nn.recipe import remember
from jaxprune.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing


def names() -> dict[str, str]:
    """Returns {model name: where its class is}: a module of this package (its NETWORK), or another package's class.

    A package of one's own adds a network by an entry point in the group "jaxprune.models" (name → class).
    """
    found = {name: module for name, module in _modules().items() if "." not in name}
    return {**found, **{name: entry.value for name, entry in plugins.entry_points(__name__, found).items()}}


def _modules() -> dict[str, str]:
    """Returns {model name, or name.tag of a published file: the module of this package that has it}."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "NETWORK"):
            found.update(dict.fromkeys(module.variants(), info.name))
    return found


def _found(name: str) -> str:
    """Returns a name that is known, without its tag if its network has none.

    Raises:
      UserError: there is no such network, or it has other tags.
    """
    known, (network, _, tag) = names(), name.partition(".")
    if network not in known and (what := not_built(name)):
        raise UserError(f"{name} is not built here: it has {what}. Take another of timm's networks.")
    if network not in known:
        raise unknown("model", name, known)
    tags = _tags(network)
    if tag and tags and tag not in tags:
        raise unknown(f"tag of {network}", tag, tags)
    return name if tags else network


def _tags(network: str) -> list[str]:
    """Returns the tags of a network's published files, that of its default file first."""
    return [file.partition(".")[2] for file in _modules() if file.startswith(f"{network}.")]


def arguments(name: str) -> dict[str, Any]:
    """Returns what a model's name stands for; a `UserError` names the nearest one if there is none.

    The name of another package's class stands for the defaults of that class.
    """
    name = _found(name)
    if name in plugins.entry_points(__name__):
        return {}
    return dict(importlib.import_module(f"{__name__}.{_modules()[name]}").variants()[name])


def module_of(name: str) -> str:
    """The module of this package that has the network of a model's name, such as "vit"; another package's: its name."""
    name = _found(name)
    return name if name in plugins.entry_points(__name__) else _modules()[name]


def create(name: str, *, rngs: nnx.Rngs, **overrides: Any) -> Any:
    """Builds a model, freshly initialised; it knows how its images are prepared (`model.preprocessing`).

    >>> from flax import nnx
    >>> create("deit_tiny_patch16_224", depth=1, rngs=nnx.Rngs(0)).preprocessing.crop_pct
    0.9

    Args:
      name: timm's, such as "vit_small_patch16_dinov3", with the tag of a published file or without; or "vit" with all
        its arguments.
      overrides: arguments of the model's class, in place of what the name stands for.
    """
    cls, chosen = _class_of(name), {**arguments(name), **overrides}
    network = plugins.build(cls, chosen, rngs=rngs)
    network.preprocessing = _preprocessing(cls, name, chosen)
    return remember(network, "model", {"name": name, **overrides})


def with_tag(name: str) -> str:
    """Returns timm's name of a network's published file; of a network without a tag, that of its default file.

    >>> with_tag("vit_small_patch14_dinov2")
    'vit_small_patch14_dinov2.lvd142m'
    """
    tags = _tags(_found(name))
    return name if "." in name or not tags else f"{name}.{tags[0]}"


def tiny(name: str) -> dict[str, Any]:
    """Returns arguments that make a network of stages small enough for tests (its module's TINY); {} of other networks.

    >>> tiny("convnext_small")["depths"]
    (1, 1)
    """
    return dict(getattr(importlib.import_module(_class_of(name).__module__), "TINY", {}))


def takes(name: str, argument: str) -> bool:
    """Returns whether the class behind a model's name has an argument, such as "img_size"."""
    return argument in plugins.parameters(_class_of(name))


def _class_of(name: str) -> type:
    name = _found(name)
    if (entry := plugins.entry_points(__name__).get(name)) is not None:
        return plugins.load(entry, nnx.Module)
    return importlib.import_module(f"{__name__}.{_modules()[name]}").NETWORK


def _preprocessing(cls: Any, name: str, chosen: dict[str, Any]) -> Preprocessing:
    """What the network's module has for the name; else the class's mean and std, or ImageNet's, at 224 pixels."""
    module = importlib.import_module(cls.__module__)
    if hasattr(module, "preprocessing"):
        return module.preprocessing(name, chosen)
    size = pair(chosen.get("img_size", (224, 224)))
    return Preprocessing(size, mean=getattr(cls, "mean", IMAGENET_MEAN), std=getattr(cls, "std", IMAGENET_STD))


__all__ = ["Preprocessing", "arguments", "create", "module_of", "names", "takes", "tiny", "with_tag"]
