"""The frozen networks that a pre-training framework learns from, such as a teacher."""

from collections.abc import Iterator
from typing import Any

from flax import nnx

from jaxprune import mim
from jaxprune.checkpoints.network import open_network
from jaxprune.checkpoints.run import build
from jaxprune.config import Config

# How a config specifies one, as in other tasks: a run directory, or a published file and its model.
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
    named = [name for name in names(arguments) if name in config and (config[name].run or config[name].weights)]
    if not named:
        return arguments
    bare: Any = nnx.eval_shape(lambda: build("mim", {**arguments, **dict.fromkeys(named)}, rngs=nnx.Rngs(0)))
    return {**arguments, **{name: _opened(config[name], bare.grid) for name in named}}


def _opened(source: Config, grid: tuple[int, int]) -> Any:
    network = open_network(source.run, source.weights, source.name)
    if getattr(network, "grid", grid) == grid:
        return network
    height, width = (cells * side for cells, side in zip(grid, network.patch_embed.patch_size, strict=True))
    return open_network(source.run, source.weights, source.name, img_size=(height, width))
