"""The segmentation network of a config: new, started from weights, or trained before."""

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxprune.commands.segment.settings import test_time
from jaxprune.commands.shared import dense_networks, inputs
from jaxprune.config import Config
from jaxprune.dense import Segmenter
from jaxprune.evaluate.segmentation.at_test import WHOLE, TestTime
from jaxprune.files import as_path
from jaxprune.nn.patch_embed import pair


def new(config: Config, num_classes: int) -> Segmenter:
    """Builds the network of `config.model` and `config.head`, its encoder started from the weights of the config."""
    sides = pair(config.data.img_size)
    return dense_networks.new(config, img_size=sides, num_classes=num_classes)


def trained(config: Config) -> tuple[Segmenter, tuple[str, ...]]:
    """Returns the network of `config.segmenter`, and its classes.

    Raises:
      UserError: it is not a segmentation network.
    """
    return dense_networks.trained(config.segmenter, "dense")


def with_recorded(config: Config, network: Segmenter) -> Config:
    """Returns a config whose `data` is that of the run `config.segmenter`, if it names no source."""
    remedy = "config.data.source=folder with config.data.path and config.data.classes"
    return dense_networks.with_recorded(config, config.segmenter, network, network.preprocessing.img_size, remedy)


def time_of_run(run: str | Path, network: Any) -> TestTime:
    """How the run of a network tests it; whole images where there is no run directory."""
    size = network.preprocessing.img_size
    if not as_path(run).is_dir():
        return TestTime(size, WHOLE)
    recorded = inputs.recorded_config(run, group="test")
    return test_time(ConfigDict({name: recorded[name] for name in ("data", "test")})).at(size)
