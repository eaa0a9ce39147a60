"""Masked image modelling: frameworks that turn images into a pre-training loss, a file each."""

from collections.abc import Mapping
from typing import Any

from flax import nnx

from jaxprune.errors import unknown
from jaxprune.mim.base import Framework, Picture, Reconstruction
from jaxprune.mim.decoder import Decoder, TokenDecoder
from jaxprune.mim.masker import Masker, Masks, RandomMasker
from jaxprune.mim.target import NormalizedPixels, Pixels, Target
from jaxprune.nn.patch_embed import pair
from jaxprune.nn.recipe import remember


def methods() -> dict[str, type[Framework]]:
    """Returns {name: class} of every framework, found by file."""
    import jaxprune.mim as family
    from jaxprune import plugins

    return plugins.methods(family, Framework)


def create(name: str, *, encoder: str | None = None, rngs: nnx.Rngs, **arguments: Any) -> Framework:
    """Builds a framework, freshly initialised.

    Args:
      name: a module of this package, such as "mae".
      encoder: a model name such as "vit_base_patch16_224" that gives the encoder's sizes; arguments overrule it. Of a
        framework that takes several kinds of networks (SimMIM: "vit" or "swin", which are such names too) it also says
        which.
      arguments: of the framework's class, or of its encoder.

    Raises:
      UserError: the framework or an argument is unknown.
    """
    import jaxprune.mim as family
    from jaxprune import models, plugins

    cls = plugins.find(family, Framework, name)
    excluded = cls.encoder_excludes
    sizes = {key: value for key, value in (models.arguments(encoder) if encoder else {}).items() if key not in excluded}
    encoder_class, kind = cls.encoder_class, {}
    if cls.encoder_classes:
        family = models.module_of(encoder) if encoder else next(iter(cls.encoder_classes))
        if family not in cls.encoder_classes:
            raise unknown(f"encoder of {cls.__name__}", str(encoder), cls.encoder_classes)
        encoder_class, kind = cls.encoder_classes[family], {"encoder": family}
    of_encoder = plugins.parameters(encoder_class) - excluded if encoder_class else ()
    framework = plugins.build(cls, {**sizes, **arguments}, passed_on=of_encoder, rngs=rngs, **kind)
    framework.preprocessing = models.Preprocessing(pair({"img_size": 224, **sizes, **arguments}["img_size"]))
    return remember(framework, "mim", {"name": name, "encoder": encoder, **arguments})


def recognise(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
    """The framework that published tensors of these shapes are of, and its arguments (`Framework.recognise`); or None.

    Args:
      shapes: {published name: shape}.
    """
    # A framework that extends another has that one's tensors too, so it is asked first.
    for name, cls in sorted(methods().items(), key=lambda item: -len(item[1].__mro__)):
        if (found := cls.recognise(shapes)) is not None:
            return {"name": name, **found}
    return None


def beside_encoder() -> tuple[str, ...]:
    """Patterns of the published names of all that frameworks have besides their encoder."""
    return tuple(sorted({pattern for cls in methods().values() for pattern in cls.beside_encoder}))


__all__ = [
    "Decoder",
    "Framework",
    "Masker",
    "Masks",
    "NormalizedPixels",
    "Picture",
    "Pixels",
    "RandomMasker",
    "Reconstruction",
    "Target",
    "TokenDecoder",
    "beside_encoder",
    "create",
    "methods",
    "recognise",
]
