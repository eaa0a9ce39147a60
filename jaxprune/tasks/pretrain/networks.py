"""The frozen networks that a pre-training framework learns from, such as a teacher."""

from collections.abc import Iterator
from typing import Any

from flax import nnx

from jaxprune import mim
from jaxprune.checkpoints.network import open_network
from jaxprune.checkpoints.run import build
from jaxprune.config import Config

# What a config says of one, as of the network of other tasks: a run directory, or a published file and its model.
SOURCE = {"run": "", "name": "", "weights": ""}


def names(settings: Any) -> list[str]:
    """The networks that the framework of a `config.mim` takes, by the names of its arguments."""
    framework = mim.methods().get(settings["name"])
    return sorted(framework.networks) if framework else []


def missing(config: Config) -> Iterator[str]:
    """Yields which network the framework learns from and the config does not name."""
    for name in names(config.mim):
        inside = name in config.mim and config.mim[name]
        beside = name in config and (config[name].run or config[name].weights)
        if not inside and not beside:
            yield (
                f"{config.mim.name} learns from a {name}, and config.{name} names none: give --config.{name}.weights="
                f"FILE with --config.{name}.name=MODEL, a published file, or --config.{name}.run=RUN, a run of ours."
            )


def arguments_of(config: Config) -> dict[str, Any]:
    """Returns `config.mim`, with the networks opened that the config names beside it.

    One of another patch size is opened for the images whose patches are as many as the framework's.

    Raises:
      UserError: a file cannot be read, or is of another network.
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
