"""The optimizer of fine-tuning: AdamW with rates by layer, and a rate of its own for what came with the weights."""

from fnmatch import fnmatchcase
from typing import Any

import optax

from jaxprune.config import Config
from jaxprune.nn import Host
from jaxprune.tasks.setup.training import Training, adamw, learning_rate
from jaxprune.train import optimizer

# What trains at the full rate where the backbone has one of its own ("Which Tokens to Use?", supplement B).
_NEW = ("head.*", "head_dist.*", "pos_embed*", "patch_embed.*", "stem.*", "*.reducer.*")


def optimizer_of(
    config: Config, params: dict[str, Any], model: Host, training: Training
) -> optax.GradientTransformation:
    """Returns the optimizer that `config.optimizer` and `config.trainable_blocks` describe.

    Args:
      params: {dotted name: array} of the network.
      model: the network.
      training: the run.
    """
    settings = config.optimizer
    # A scorer that learns comes before the first layer.
    layers = model.parameter_layers(params) | {name: 0 for name in params if name.startswith("pruner.")}
    depth = len(model.sites())
    own = None
    if settings.backbone_scale != 1.0 or settings.freeze_epochs:
        slower = learning_rate(config, training.steps, settings.backbone_scale)
        slower = optimizer.frozen_until(slower, settings.freeze_epochs * training.steps.per_epoch)
        own = {name: slower for name in params if not any(fnmatchcase(name, new) for new in _NEW)}
    return adamw(
        config,
        training.schedule,
        params,
        exempt=model.no_decay,
        layer_scales=optimizer.layer_scales(layers, depth, settings.layer_decay),
        schedules=own,
        frozen=optimizer.frozen_names(layers, depth, config.trainable_blocks),
    )
