"""The detector of a config: new, started from weights, or trained before."""

from typing import Any

from jaxprune.commands.shared import dense_networks
from jaxprune.config import Config
from jaxprune.dense import Detector
from jaxprune.nn.patch_embed import pair


def new(config: Config, num_classes: int) -> Detector:
    """Builds the network of `config.model` and `config.head`, its encoder started from the weights of the config."""
    return dense_networks.new(
        config,
        img_size=pair(config.data.img_size),
        num_classes=num_classes,
        with_masks=config.data.masks != "none",
    )


def trained(config: Config) -> tuple[Any, tuple[str, ...]]:
    """Returns the network of `config.detector`, and its classes.

    Raises:
      UserError: it is not a detector.
    """
    return dense_networks.trained(config.detector, "detector")


def with_recorded(config: Config, network: Detector) -> Config:
    """Returns a config whose `data` is that of the run `config.detector`, if it names no source."""
    remedy = "config.data.source=coco, yolo or voc with config.data.path"
    return dense_networks.with_recorded(config, config.detector, network, network.preprocessing.img_size, remedy)
