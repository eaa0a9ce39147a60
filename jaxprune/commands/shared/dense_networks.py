"""What `segment` and `detect` share: a network of encoder and head, new, under plans, or trained on recorded data."""

from pathlib import Path
from typing import Any

from flax import nnx
from ml_collections import ConfigDict

from jaxprune import open as door
from jaxprune import reduction
from jaxprune.checkpoints.build import build
from jaxprune.commands.shared import inputs, networks
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing
from jaxprune.reduction import DENSE


def new(config: Config, preprocessing: Preprocessing, **arguments: Any) -> Any:
    """Builds the network of `config.model` and `config.head`, its encoder started from the weights of the config.

    Args:
      preprocessing: how it reads images.
      arguments: those of the network that neither group has, such as the number of classes.
    """
    model = networks.model_arguments(config)
    arguments = {"encoder": model.pop("name"), **model, **config.head.to_dict(), **arguments}
    network = build("dense", arguments, dtype=config.dtype, rngs=nnx.Rngs(config.seed))
    if start := networks.start_of(config):
        door.initialise(network.encoder, start)
    network.preprocessing = preprocessing
    if config.plan:
        network = reduction.apply(network, networks.plan(config, config.plan), rngs=nnx.Rngs(config.seed))
    return network


def under_plans(config: Config, network: Any) -> dict[str, Any]:
    """Returns the network as it is, and under each of `config.plans`."""
    first = DENSE if network.plan is None else network.plan.text
    reduced = {
        text: reduction.apply(network, plan, rngs=nnx.Rngs(config.seed))
        for text, plan in networks.plans(config).items()
    }
    return {first: network, **reduced}


def with_recorded(config: Config, origin: str, network: Any, img_size: int | tuple[int, int], remedy: str) -> Config:
    """Returns a config whose `data` is that of the run of the network, if it names no source.

    Sizes and normalisation are always the network's.

    Args:
      origin: the run directory, or a file, which has no data.
      img_size: the size of the network's images, as the command's config states it.
      remedy: the settings to give where there is no run.

    Raises:
      UserError: there is neither a source nor a run.
    """
    record = network.preprocessing
    values: dict[str, Any] = config.to_dict()
    if not config.data.source:
        if not Path(origin).is_dir():
            raise UserError(f"{origin} has no data set: give {remedy}.")
        recorded = inputs.recorded_config(origin, group="data")
        values |= {"data": {**values["data"], **recorded["data"]}, "seed": recorded["seed"]}
    values["data"] |= {"img_size": img_size, "mean": record.mean, "std": record.std}
    return ConfigDict(values)
