"""The learning rates of fine-tuning: by layer, and separately for pre-trained parameters."""

from fnmatch import fnmatchcase
from typing import Any

import optax

from jaxprune import reduction
from jaxprune.commands.shared.training import Training, build_optimizer, learning_rate
from jaxprune.config import Config
from jaxprune.nn import Host
from jaxprune.train import optimizer

# Parameters with the full rate if the backbone has its own ("Which Tokens to Use?", supplement B).
_NEW = ("head.*", "head_dist.*", "pos_embed*", "patch_embed.*", "stem.*", "*.reducer.*")


def grouped_optimizer(
    config: Config, params: dict[str, Any], model: Host, training: Training
) -> optax.GradientTransformation:
    """Builds the optimizer of `config.optimizer` and `config.trainable_blocks`.

    Args:
      params: {dotted name: array} of the network's parameters.
      model: the network.
      training: the run.
    """
    settings = config.optimizer
    # A trained scorer counts as before the first layer.
    layers = model.parameter_layers(params) | {name: 0 for name in params if name.startswith("pruner.")}
    depth = len(model.sites())
    schedules = None
    if settings.backbone_scale != 1.0 or settings.freeze_epochs:
        slower = learning_rate(config, training.steps, settings.backbone_scale)
        slower = optimizer.frozen_until(slower, settings.freeze_epochs * training.steps.per_epoch)
        schedules = {name: slower for name in params if not any(fnmatchcase(name, new) for new in _NEW)}
    frozen = optimizer.frozen_names(layers, depth, config.trainable_blocks)
    grouped = build_optimizer(
        config,
        training.schedule,
        params,
        exempt=model.no_decay,
        layer_scales=optimizer.layer_scales(layers, depth, settings.layer_decay),
        schedules=schedules,
        frozen=frozen,
    )
    trained = lambda name: not any(fnmatchcase(name, pattern) for pattern in frozen)
    constraints = reduction.constraints(model)
    return optimizer.with_constraints(grouped, {name: constraints[name] for name in constraints if trained(name)})
