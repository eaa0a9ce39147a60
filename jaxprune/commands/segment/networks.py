"""The segmentation network of a config: new, started from weights, or trained before."""

from pathlib import Path
from typing import Any

from flax import nnx
from ml_collections import ConfigDict

from jaxprune import checkpoints, reduction
from jaxprune import open as door
from jaxprune.checkpoints.build import build
from jaxprune.commands.segment.settings import preprocessing
from jaxprune.commands.shared import inputs as shared_inputs
from jaxprune.commands.shared import networks
from jaxprune.config import Config
from jaxprune.dense import Segmenter
from jaxprune.errors import UserError
from jaxprune.nn.patch_embed import pair
from jaxprune.reduction import DENSE


def new(config: Config, num_classes: int) -> Segmenter:
    """Builds the network of `config.model` and `config.head`, its encoder started from the weights of the config."""
    model = networks.model_arguments(config)
    name, head = model.pop("name"), config.head.to_dict()
    arguments = {**model, "img_size": pair(config.data.img_size), **head, "encoder": name, "num_classes": num_classes}
    network = build("dense", arguments, dtype=config.dtype, rngs=nnx.Rngs(config.seed))
    if start := networks.start_of(config):
        door.initialise(network.encoder, start)
    network.preprocessing = preprocessing(config)
    if config.plan:
        network = reduction.apply(network, networks.plan(config, config.plan), rngs=nnx.Rngs(config.seed))
    return network


def trained(config: Config) -> tuple[Segmenter, tuple[str, ...]]:
    """Returns the network of `config.segmenter`, and its classes.

    Raises:
      UserError: it is no segmentation network.
    """
    card = checkpoints.load_card(config.segmenter).require("dense", config.segmenter)
    return checkpoints.load_model(config.segmenter), card.class_names


def under_plans(config: Config, network: Segmenter) -> dict[str, Segmenter]:
    """Returns the network as it is, and under each of `config.plans`."""
    first = DENSE if network.plan is None else network.plan.text
    reduced = {
        text: reduction.apply(network, plan, rngs=nnx.Rngs(config.seed))
        for text, plan in networks.plans(config).items()
    }
    return {first: network, **reduced}


def with_recorded(config: Config, network: Segmenter) -> Config:
    """Returns a config whose `data` is that of the run `config.segmenter`, if it names no source.

    Sizes and normalisation are always the network's.
    """
    record = network.preprocessing
    values: dict[str, Any] = config.to_dict()
    if not config.data.source:
        if not Path(config.segmenter).is_dir():
            raise UserError(
                f"{config.segmenter} has no data set: give config.data.source=folder with config.data.path and "
                "config.data.classes."
            )
        recorded = shared_inputs.recorded_config(config.segmenter, group="data")
        values |= {"data": {**values["data"], **recorded["data"]}, "seed": recorded["seed"]}
    values["data"] |= {"img_size": record.img_size, "mean": record.mean, "std": record.std}
    return ConfigDict(values)
