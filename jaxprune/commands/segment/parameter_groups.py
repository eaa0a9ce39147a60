"""The optimizer of segmentation: layer-wise rates in the encoder, the full rate in neck and heads."""

from collections.abc import Callable, Sequence
from typing import Any

import optax

from jaxprune.commands.shared.training import build_optimizer
from jaxprune.config import Config
from jaxprune.dense import Segmenter
from jaxprune.nn import Host
from jaxprune.train import optimizer

_ENCODER = "encoder."


def rate_scales(network: Segmenter, names: Sequence[str], decay: float) -> dict[str, float]:
    """Returns the learning-rate scale of every parameter: as in BEiT within the encoder, 1 everywhere else.

    Args:
      names: dotted names of the network's parameters.
      decay: factor from one layer to the layer below.
    """
    encoder = network.encoder
    depth = len(encoder.sites()) if isinstance(encoder, Host) else 0
    inner = [name.removeprefix(_ENCODER) for name in names if name.startswith(_ENCODER)]
    layers = {f"{_ENCODER}{name}": layer for name, layer in encoder.parameter_layers(inner).items()}
    return optimizer.layer_scales({name: layers.get(name, depth + 1) for name in names}, depth, decay)


def grouped_optimizer(
    config: Config, params: dict[str, Any], network: Segmenter, schedule: Callable[[Any], Any]
) -> optax.GradientTransformation:
    """Builds the optimizer of `config.optimizer`.

    Vectors and biases do not decay; positions, class token and tables of relative positions do, as in the published
    code, whose list of exceptions names them without the prefix they have.
    """
    scales = rate_scales(network, list(params), config.optimizer.layer_decay)
    return build_optimizer(config, schedule, params, layer_scales=scales)
