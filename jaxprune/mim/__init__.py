"""Masked image modelling: frameworks that turn images into a pre-training loss, a file each."""

from typing import Any

from flax import nnx

from jaxprune.mim.base import Framework
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
      encoder: a model name such as "vit_base_patch16_224" that gives the encoder's sizes; arguments overrule it.
      arguments: of the framework's class.
    """
    import jaxprune.mim as family
    from jaxprune import models, plugins

    sizes = models.arguments(encoder) if encoder else {}
    framework = plugins.build(plugins.find(family, Framework, name), {**sizes, **arguments}, rngs=rngs)
    framework.preprocessing = models.Preprocessing(pair({"img_size": 224, **sizes, **arguments}["img_size"]))
    return remember(framework, "mim", {"name": name, "encoder": encoder, **arguments})


__all__ = ["Framework", "create", "methods"]
