"""The frozen networks that a pre-training framework learns from, such as a teacher."""

from collections.abc import Iterator
from typing import Any

from flax import nnx

from jaxprune import mim
from jaxprune.checkpoints.run import build
from jaxprune.config import Config
from jaxprune.open import Origin, named, open_network

# How a config specifies the origin of one, as in other tasks.
SOURCE = {"run": "", "name": "", "weights": ""}


def names(settings: Any) -> list[str]:
    """The network arguments of the framework of a `config.mim`."""
    framework = mim.methods().get(settings["name"])
    return sorted(framework.networks) if framework else []


def missing(config: Config) -> Iterator[str]:
    """Yields the networks that the framework needs and the config lacks."""
    for name in names(config.mim):
        inside = name in config.mim and config.mim[name]
        beside = name in config and (config[name].run or config[name].weights)
        if not inside and not beside:
            yield (
                f"{config.mim.name} needs a {name}, and config.{name} is empty: give --config.{name}.weights="
                f"FILE with --config.{name}.name=MODEL, a published file, or --config.{name}.run=RUN, a jaxprune run."
            )


def arguments_of(config: Config) -> dict[str, Any]:
    """Returns `config.mim` with its networks, which the config specifies separately, opened.

    A network with another patch size is opened at the image size that gives as many patches as the framework has.

    Raises:
      UserError: a file cannot be read, or belongs to another network.
    """
    arguments = config.mim.to_dict()
    settings = lambda name: (f"--config.{name}.run", f"--config.{name}.weights", f"--config.{name}.name")
    origins = {
        name: named(**config[name], settings=settings(name))
        for name in names(arguments)
        if name in config and (config[name].run or config[name].weights)
    }
    if not origins:
        return arguments
    bare: Any = nnx.eval_shape(lambda: build("mim", {**arguments, **dict.fromkeys(origins)}, rngs=nnx.Rngs(0)))
    return {**arguments, **{name: _opened(origin, bare.grid) for name, origin in origins.items()}}


def _opened(origin: Origin, grid: tuple[int, int]) -> Any:
    network = open_network(origin)
    if getattr(network, "grid", grid) == grid:
        return network
    height, width = (cells * side for cells, side in zip(grid, network.patch_embed.patch_size, strict=True))
    return open_network(origin, img_size=(height, width))
