"""The optimizer of segmentation: layer-wise rates in the encoder, the full rate in neck and heads."""

from collections.abc import Callable
from typing import Any

import optax

from jaxprune.commands.shared.training import build_optimizer
from jaxprune.config import Config
from jaxprune.dense import Segmenter
from jaxprune.train.encoder_rates import rate_scales


def grouped_optimizer(
    config: Config, params: dict[str, Any], network: Segmenter, schedule: Callable[[Any], Any]
) -> optax.GradientTransformation:
    """Builds the optimizer of `config.optimizer`.

    Vectors and biases do not decay; positions, class token and tables of relative positions do, as in the published
    code, whose list of exceptions names them without the prefix they have.
    """
    scales = rate_scales(network, list(params), config.optimizer.layer_decay)
    return build_optimizer(config, schedule, params, layer_scales=scales)
