"""The detector of a config: new, started from weights, or trained before."""

from pathlib import Path
from typing import Any

from flax import nnx
from ml_collections import ConfigDict

from jaxprune import checkpoints, reduction
from jaxprune import open as door
from jaxprune.checkpoints.build import build
from jaxprune.commands.detect.settings import preprocessing
from jaxprune.commands.shared import inputs as shared_inputs
from jaxprune.commands.shared import networks
from jaxprune.config import Config
from jaxprune.dense import Detector
from jaxprune.errors import UserError
from jaxprune.reduction import DENSE


def new(config: Config, num_classes: int) -> Detector:
    """Builds the network of `config.model` and `config.head`, its encoder started from the weights of the config."""
    model = networks.model_arguments(config)
    name = model.pop("name")
    arguments = {**model, "img_size": config.data.img_size, **config.head.to_dict(), "encoder": name}
    arguments |= {"num_classes": num_classes, "with_masks": config.data.masks != "none"}
    network = build("dense", arguments, dtype=config.dtype, rngs=nnx.Rngs(config.seed))
    if start := networks.start_of(config):
        door.initialise(network.encoder, start)
    network.preprocessing = preprocessing(config)
    if config.plan:
        network = reduction.apply(network, networks.plan(config, config.plan), rngs=nnx.Rngs(config.seed))
    return network


def trained(config: Config) -> tuple[Any, tuple[str, ...]]:
    """Returns the network of `config.detector`, and its classes.

    Raises:
      UserError: it is no detector.
    """
    card = checkpoints.load_card(config.detector).require("detector", config.detector)
    return checkpoints.load_model(config.detector), card.class_names


def under_plans(config: Config, network: Detector) -> dict[str, Any]:
    """Returns the network as it is, and under each of `config.plans`."""
    first = DENSE if network.plan is None else network.plan.text
    reduced = {
        text: reduction.apply(network, plan, rngs=nnx.Rngs(config.seed))
        for text, plan in networks.plans(config).items()
    }
    return {first: network, **reduced}


def with_recorded(config: Config, network: Detector) -> Config:
    """Returns a config whose `data` is that of the run `config.detector`, if it names no source.

    Sizes and normalisation are always the network's.
    """
    record = network.preprocessing
    values: dict[str, Any] = config.to_dict()
    if not config.data.source:
        if not Path(config.detector).is_dir():
            raise UserError(
                f"{config.detector} has no data set: give config.data.source=coco, yolo or voc with config.data.path."
            )
        recorded = shared_inputs.recorded_config(config.detector, group="data")
        values |= {"data": {**values["data"], **recorded["data"]}, "seed": recorded["seed"]}
    values["data"] |= {"img_size": max(record.sides), "mean": record.mean, "std": record.std}
    return ConfigDict(values)
