"""Networks, by their names in timm."""

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
    """Returns {model name: location of its class}: a module of this package (its NETWORK), or another package's class.

    A package of your own adds a network by an entry point in the group "jaxprune.models" (name → class).
    """
    found = {name: module for name, module in _modules().items() if "." not in name}
    return {**found, **{name: entry.value for name, entry in plugins.entry_points(__name__, found).items()}}


def _modules() -> dict[str, str]:
    """Returns {model name, or name.tag of a published file: the module of this package that defines it}."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "NETWORK"):
            found.update(dict.fromkeys(module.variants(), info.name))
    return found


def _found(name: str) -> str:
    """Resolves a model name, dropping its tag if the network has no tags.

    Raises:
      UserError: there is no such network, or it has other tags.
    """
    known, (network, _, tag) = names(), name.partition(".")
    if network not in known and (what := not_built(name)):
        raise UserError(f"{name} is not supported: it has {what}. Choose another of timm's networks.")
    if network not in known:
        raise unknown("model", name, known)
    tags = _tags(network)
    if tag and tags and tag not in tags:
        raise unknown(f"tag of {network}", tag, tags)
    return name if tags else network


def _tags(network: str) -> list[str]:
    """Returns the tags of a network's published files, the default first."""
    return [file.partition(".")[2] for file in _modules() if file.startswith(f"{network}.")]


def arguments(name: str) -> dict[str, Any]:
    """Returns the constructor arguments of a named model; the `UserError` for an unknown name suggests the nearest.

    For a class of another package these are the defaults of the class.
    """
    name = _found(name)
    if name in plugins.entry_points(__name__):
        return {}
    return dict(importlib.import_module(f"{__name__}.{_modules()[name]}").variants()[name])


def module_of(name: str) -> str:
    """The module of this package that defines a model, such as "vit"; for another package's model, the model's name."""
    name = _found(name)
    return name if name in plugins.entry_points(__name__) else _modules()[name]


def create(name: str, *, rngs: nnx.Rngs, **overrides: Any) -> Any:
    """Builds a model, freshly initialised; `model.preprocessing` describes how its images are prepared.

    >>> from flax import nnx
    >>> create("deit_tiny_patch16_224", depth=1, rngs=nnx.Rngs(0)).preprocessing.crop_pct
    0.9

    Args:
      name: timm's name, such as "vit_small_patch16_dinov3", with or without the tag of a published file; or "vit", with
        all arguments passed in `overrides`.
      overrides: constructor arguments that replace those of the name.
    """
    cls, chosen = _class_of(name), {**arguments(name), **overrides}
    network = plugins.build(cls, chosen, rngs=rngs)
    network.preprocessing = _preprocessing(cls, name, chosen)
    return remember(network, "model", {"name": name, **overrides})


def with_tag(name: str) -> str:
    """Returns timm's name of a published file, `name.tag`; a name without a tag gets the default tag.

    >>> with_tag("vit_small_patch14_dinov2")
    'vit_small_patch14_dinov2.lvd142m'
    """
    tags = _tags(_found(name))
    return name if "." in name or not tags else f"{name}.{tags[0]}"


def tiny(name: str) -> dict[str, Any]:
    """Returns arguments that make a hierarchical network small enough for tests (its module's TINY), else {}.

    >>> tiny("convnext_small")["depths"]
    (1, 1)
    """
    return dict(getattr(importlib.import_module(_class_of(name).__module__), "TINY", {}))


def takes(name: str, argument: str) -> bool:
    """Returns whether the constructor of a named model has an argument, such as "img_size"."""
    return argument in plugins.parameters(_class_of(name))


def _class_of(name: str) -> type:
    name = _found(name)
    if (entry := plugins.entry_points(__name__).get(name)) is not None:
        return plugins.load(entry, nnx.Module)
    return importlib.import_module(f"{__name__}.{_modules()[name]}").NETWORK


def _preprocessing(cls: Any, name: str, chosen: dict[str, Any]) -> Preprocessing:
    """The preprocessing from the network's module; else the class's mean and std, or ImageNet's, at 224 pixels."""
    module = importlib.import_module(cls.__module__)
    if hasattr(module, "preprocessing"):
        return module.preprocessing(name, chosen)
    size = pair(chosen.get("img_size", (224, 224)))
    return Preprocessing(size, mean=getattr(cls, "mean", IMAGENET_MEAN), std=getattr(cls, "std", IMAGENET_STD))


__all__ = ["Preprocessing", "arguments", "create", "module_of", "names", "takes", "tiny", "with_tag"]
