"""Masked image modelling: pre-training frameworks that compute a loss from images, one file each.

What they are made of (maskers, decoders, targets) is in `mim.parts`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import nnx

from jaxprune import plugins
from jaxprune.errors import unknown
from jaxprune.mim.parts.base import Framework, Picture, Reconstruction
from jaxprune.mim.parts.decoder import Decoder, TokenDecoder
from jaxprune.mim.parts.masker import Masker, Masks, RandomMasker
from jaxprune.mim.parts.partial_reconstruction import FULL, PARTIAL_ARGUMENTS, Partial
from jaxprune.mim.parts.target import NormalizedPixels, Pixels, Target
from jaxprune.nn.images import require_buildable
from jaxprune.nn.params import merge, split
from jaxprune.nn.patch_embed import pair
from jaxprune.nn.recipe import remember
from jaxprune.preprocessing import trained_on


def methods() -> dict[str, type[Framework]]:
    """Returns {name: class} of every framework, found by its file."""
    import jaxprune.mim as family

    return plugins.methods(family, Framework)


def create(name: str, *, encoder: str | None = None, rngs: nnx.Rngs, **arguments: Any) -> Framework:
    """Builds a framework, freshly initialised.

    Args:
      name: a module of this package, such as "mae".
      encoder: a model name such as "vit_base_patch16_224" that sets the encoder's sizes; arguments override it. For a
        framework with several kinds of encoders it also selects the kind (SimMIM: "vit" or "swin", which are also model
        names).
      arguments: arguments of the framework's class or of its encoder, and those of `Partial`, such as
        `reconstruction` and `throw_ratio`. A network among them, such as a teacher, is either built by `models.create`
        or given as a recipe of plain values: `("model", arguments of models.create)`.

    Raises:
      UserError: the framework or an argument is unknown.
    """
    import jaxprune.mim as family
    from jaxprune import models

    require_buildable(arguments.get("dtype"), rngs)
    cls = plugins.find(family, Framework, name)
    sizes = models.arguments(encoder) if encoder else {}
    sizes = {key: value for key, value in sizes.items() if key not in cls.encoder_excludes}
    encoder_class, kind = cls.encoder_class, {}
    if cls.encoder_classes:
        family = models.module_of(encoder) if encoder else next(iter(cls.encoder_classes))
        if family not in cls.encoder_classes:
            raise unknown(f"encoder of {cls.__name__}", str(encoder), cls.encoder_classes)
        encoder_class, kind = cls.encoder_classes[family], {"encoder": family}
    plugins.check_arguments(cls, {**sizes, **arguments}, argument_names(cls, encoder_class))
    plugins.check_kinds(cls, arguments)
    if encoder_class is not None:
        plugins.check_kinds(
            encoder_class, {n: value for n, value in arguments.items() if n not in plugins.signature(cls)}
        )
    named = {argument: arguments[argument] for argument in cls.networks if arguments.get(argument) is not None}
    networks = {argument: _network(network, arguments.get("dtype"), rngs) for argument, network in named.items()}
    framework = cls(**_with_partial(cls, {**sizes, **arguments, **networks}), rngs=rngs, **kind)
    images = {"img_size": 224, "in_chans": 3, **sizes, **arguments}
    record = models.Preprocessing(pair(images["img_size"]))
    framework.preprocessing = record.with_channels(images["in_chans"])
    recipes = {argument: _recipe(network) for argument, network in named.items()}
    return remember(framework, "mim", {"name": name, "encoder": encoder, **arguments, **recipes})


def argument_names(cls: type[Framework], encoder_class: type | None = None) -> set[str]:
    """The names of the arguments that `create` takes for a framework, besides `name`, `encoder` and `rngs`.

    Args:
      encoder_class: the class of its encoder; by default its only one, or the first.
    """
    classes = (encoder_class, cls.encoder_class, *cls.encoder_classes.values())
    encoder_class = next(filter(None, classes), None)
    names = plugins.parameters(cls)
    of_partial = PARTIAL_ARGUMENTS if "partial" in names else ()
    of_encoder = plugins.parameters(encoder_class) - cls.encoder_excludes if encoder_class else ()
    return names.union(of_partial, of_encoder) - {"partial", "encoder", "rngs"}


def _with_partial(cls: type[Framework], arguments: dict[str, Any]) -> dict[str, Any]:
    """Collects the arguments that make up a framework's `partial`, except those that the framework has of its own."""
    signature = plugins.signature(cls)
    packed = {name: arguments[name] for name in PARTIAL_ARGUMENTS if name in arguments and name not in signature}
    if not packed:
        return arguments
    remaining = {name: value for name, value in arguments.items() if name not in packed}
    return {**remaining, "partial": dataclasses.replace(signature["partial"].default, **packed)}


def _network(network: Any, dtype: Any, rngs: nnx.Rngs) -> Any:
    """Builds a network argument of a framework from its recipe, in the compute `dtype`.

    A network without a recipe, or under a plan, which is no part of the recipe, is returned as it is.
    """
    is_module = not isinstance(network, tuple | list)
    recipe = getattr(network, "recipe", None) if is_module else network
    if recipe is None or (is_module and (dtype is None or getattr(network, "plan", None) is not None)):
        return network
    kind, arguments, *normalised = recipe
    arguments = {**dict(arguments), "dtype": dtype}

    def make(rngs: nnx.Rngs) -> Any:
        from jaxprune import models

        if kind == "model":
            return models.create(**arguments, rngs=rngs)
        framework: Any = create(**arguments, rngs=rngs)
        encoder = framework.backbone()
        encoder.preprocessing = framework.preprocessing
        return encoder

    if is_module:
        parts = split(network)
        built = merge(split(nnx.eval_shape(lambda: make(nnx.Rngs(0)))).graph, parts.params, parts.rest)
        built.preprocessing = network.preprocessing
        return built
    built = make(nnx.Rngs(rngs.params()))
    for mean, std in filter(None, normalised):
        built.preprocessing = dataclasses.replace(built.preprocessing, mean=mean, std=std)
    return built


def _recipe(network: Any) -> Any:
    """The recipe from which `_network` rebuilds a network, in values that a card holds; other values unchanged."""
    if isinstance(network, tuple | list):
        kind, arguments, *normalised = network
        return (kind, tuple(dict(arguments).items()), *normalised)
    recipe = getattr(network, "recipe", None)
    return network if recipe is None else (*recipe, trained_on(network))


def recognise(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
    """The framework of published tensors with these shapes, and its arguments (`Framework.recognise`); or None.

    Args:
      shapes: {published name: shape}.
    """
    name, arguments = _recognised(shapes)
    return None if name is None else {"name": name, **arguments}


def encoder_tensors(tensors: Mapping[str, Any]) -> dict[str, Any] | None:
    """The tensors of a framework's published file that fine-tuning, probes and features use, by the encoder's names.

    Args:
      tensors: {published name: array} of the whole file.

    Returns:
      {published name: array}, or None if they belong to no framework.
    """
    name, _ = _recognised({name: np.shape(tensor) for name, tensor in tensors.items()})
    return None if name is None else methods()[name].encoder_tensors(tensors)


def _recognised(shapes: Mapping[str, tuple[int, ...]]) -> tuple[str | None, dict[str, Any]]:
    # A framework that extends another also has that one's tensors, so it is tried first.
    for name, cls in sorted(methods().items(), key=lambda item: -len(item[1].__mro__)):
        if (arguments := cls.recognise(shapes)) is not None:
            return name, arguments
    return None, {}


def non_encoder_patterns() -> tuple[str, ...]:
    """Patterns of the published names of everything besides the encoder, of all frameworks."""
    return tuple(sorted({pattern for cls in methods().values() for pattern in cls.non_encoder_patterns}))


__all__ = [
    "FULL",
    "Decoder",
    "Framework",
    "Masker",
    "Masks",
    "NormalizedPixels",
    "Partial",
    "Picture",
    "Pixels",
    "RandomMasker",
    "Reconstruction",
    "Target",
    "TokenDecoder",
    "argument_names",
    "create",
    "encoder_tensors",
    "methods",
    "non_encoder_patterns",
    "recognise",
]
