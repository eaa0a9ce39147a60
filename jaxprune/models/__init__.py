"""Networks, by their names in timm."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from flax import nnx

from jaxprune import plugins
from jaxprune.errors import UserError, unknown
from jaxprune.models.vit_names import not_built
from jaxprune.nn.images import require_buildable
from jaxprune.nn.patch_embed import pair
from jaxprune.nn.recipe import remember
from jaxprune.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing


def names() -> dict[str, str]:
    """Returns {model name: location of its class}: a module of this package (its NETWORK), or another package's class.

    A package of your own adds a network by an entry point in the group "jaxprune.models" (name → class).
    """
    modules = {name: _short(module) for module in _modules() for name in module.variants() if "." not in name}
    return {**modules, **{name: entry.value for name, entry in plugins.entry_points(__name__, modules).items()}}


def _modules(first: str = "") -> Iterator[ModuleType]:
    """Yields the modules of this package that define networks; `first` is the name of one that is looked for.

    The module that a name begins with comes first, then `vit`, whose table has most of timm's names, so looking up one
    network imports few modules.
    """
    files = (info.name for info in pkgutil.iter_modules(__path__))
    for file in sorted(files, key=lambda file: (not first.startswith(file), file != "vit")):
        module = importlib.import_module(f"{__name__}.{file}")
        if hasattr(module, "NETWORK"):
            yield module


def _module_with(network: str) -> ModuleType | None:
    return next((module for module in _modules(network) if network in module.variants()), None)


def _short(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


class _Defined:
    """The names of this package's networks, looked up one by one."""

    def __contains__(self, name: str) -> bool:
        return _module_with(name) is not None


def _resolved(name: str) -> tuple[str, ModuleType | None]:
    """Returns a model name, without its tag if the network has no tags, and its module; None for another package's.

    Raises:
      UserError: there is no such network, or it has other tags.
    """
    if not isinstance(name, str):
        raise unknown("model", name, names())
    network, _, tag = name.partition(".")
    if network in plugins.entry_points(__name__, _Defined()):
        return network, None
    module = _module_with(network)
    if module is None:
        if unsupported := not_built(name):
            raise UserError(f"{name} is not supported: it has {unsupported}. Choose another of timm's networks.")
        raise unknown("model", name, names())
    tags = _tags(network, module)
    if tag and tags and tag not in tags:
        raise unknown(f"tag of {network}", tag, tags)
    return name if tags else network, module


def _tags(network: str, module: ModuleType) -> list[str]:
    """Returns the tags of a network's published files, the default first."""
    return [file.partition(".")[2] for file in module.variants() if file.startswith(f"{network}.")]


def arguments(name: str) -> dict[str, Any]:
    """Returns the constructor arguments of a named model; the `UserError` for an unknown name suggests the nearest.

    For a class of another package these are the defaults of the class.
    """
    name, module = _resolved(name)
    return {} if module is None else dict(module.variants()[name])


def module_of(name: str) -> str:
    """The module of this package that defines a model, such as "vit"; for another package's model, the model's name."""
    name, module = _resolved(name)
    return name if module is None else _short(module)


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
    require_buildable(overrides.get("dtype"), rngs)
    overrides = plugins.plain(overrides)
    cls, options = _class_of(name), {**arguments(name), **overrides}
    network = plugins.build(cls, options, rngs=rngs)
    network.preprocessing = _preprocessing(cls, name, options)
    return remember(network, "model", {"name": name, **overrides})


def with_tag(name: str) -> str:
    """Returns timm's name of a published file, `name.tag`; a name without a tag gets the default tag.

    >>> with_tag("vit_small_patch14_dinov2")
    'vit_small_patch14_dinov2.lvd142m'
    """
    network, module = _resolved(name)
    tags = _tags(network, module) if module is not None and "." not in name else []
    return f"{name}.{tags[0]}" if tags else name


def tiny(name: str) -> dict[str, Any]:
    """Returns arguments that make a network small enough for tests (its module's TINY); {} for a ViT.

    >>> tiny("convnext_small")["depths"]
    (1, 1)
    """
    return dict(getattr(importlib.import_module(_class_of(name).__module__), "TINY", {}))


def takes(name: str, argument: str) -> bool:
    """Returns whether the constructor of a named model has an argument, such as "img_size"."""
    return argument in plugins.parameters(_class_of(name))


def parameters(name: str) -> set[str]:
    """Returns the names of a named model's constructor arguments, such as "img_size"."""
    return plugins.parameters(_class_of(name)) - {"rngs"}


def size_argument(name: str, img_size: int | tuple[int, int] | None) -> dict[str, Any]:
    """Returns the argument of `create` for images of another size; {} for None, and for a model of images of any size.

    >>> size_argument("vit_small_patch16_224", 384), size_argument("resnet18", 384)
    ({'img_size': 384}, {})
    """
    return {"img_size": img_size} if img_size is not None and takes(name, "img_size") else {}


def at_size(name: str, built: Mapping[str, Any], img_size: int | tuple[int, ...]) -> dict[str, Any]:
    """Returns the arguments of a network for images of another size, with tables of the size that it was trained at.

    >>> at_size("vitdet", {"img_size": 64, "depth": 2}, 32)
    {'img_size': 32, 'depth': 2, 'table_img_size': 64}

    Args:
      built: the arguments it was built with; others than the model's stay.
    """
    before = {**arguments(name), **built}
    tables = {"table_img_size": before.get("table_img_size") or before.get("img_size")}
    kept = tables if takes(name, "table_img_size") and tables["table_img_size"] else {}
    return {**built, **({"img_size": img_size} if takes(name, "img_size") else {}), **kept}


def _class_of(name: str) -> type:
    name, module = _resolved(name)
    return plugins.load(plugins.entry_points(__name__)[name], nnx.Module) if module is None else module.NETWORK


def _preprocessing(cls: Any, name: str, options: dict[str, Any]) -> Preprocessing:
    """The preprocessing from the network's module; else the class's mean and std, or ImageNet's, at 224 pixels."""
    module = importlib.import_module(cls.__module__)
    if hasattr(module, "preprocessing"):
        prepared = module.preprocessing(name, options)
    else:
        size = pair(options.get("img_size", (224, 224)))
        prepared = Preprocessing(size, mean=getattr(cls, "mean", IMAGENET_MEAN), std=getattr(cls, "std", IMAGENET_STD))
    return prepared.with_channels(options.get("in_chans", len(prepared.mean)))


__all__ = [
    "Preprocessing",
    "arguments",
    "at_size",
    "create",
    "module_of",
    "names",
    "parameters",
    "size_argument",
    "takes",
    "tiny",
    "with_tag",
]
