"""The images on which a trained network is timed whose speed depends on them."""

from collections.abc import Callable
from typing import Any

import jax

from jaxprune.commands.segment import inputs, networks
from jaxprune.commands.segment.settings import Settings, test_time
from jaxprune.commands.shared import dense_networks
from jaxprune.config import Config
from jaxprune.evaluate.segmentation.at_test import read


def timed_images(config: Config) -> Callable[[Any, int], jax.Array]:
    """Returns (network, number) -> normalised held-out images of `config.run`, as that run tests networks of this size.

    Args:
      config: of another command.
    """
    settings = dense_networks.test_of_run(Settings.defaults(), config, "segmenter")
    network, _ = networks.trained(settings)
    settings = networks.with_recorded(settings, network)
    return of_source(settings, inputs.source(settings, "eval"))


def of_source(config: Config, source: Any) -> Callable[[Any, int], jax.Array]:
    """The same, of a source, for settings of `segment`."""
    time = test_time(config)
    return lambda network, count: read(source, time.at(network.preprocessing.img_size), network.preprocessing, count)
