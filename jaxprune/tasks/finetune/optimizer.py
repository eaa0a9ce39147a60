"""The optimizer of fine-tuning: AdamW with rates by layer, and a rate of its own for what came with the weights."""

from fnmatch import fnmatchcase
from typing import Any

import optax

from jaxprune.config import Config
from jaxprune.tasks.setup.training import Training, adamw, learning_rate
from jaxprune.train import optimizer

# What trains at the full rate where the backbone has one of its own ("Which Tokens to Use?", supplement B).
_NEW = ("head.*", "head_dist.*", "pos_embed", "patch_embed.*", "*.reducer.*")
_NO_DECAY = ("pos_embed", "cls_token", "dist_token", "reg_token")


def optimizer_of(
    config: Config, params: dict[str, Any], depth: int, training: Training
) -> optax.GradientTransformation:
    """Returns the optimizer that `config.optimizer` and `config.trainable_blocks` describe.

    Args:
      params: {dotted name: array} of the network.
      depth: its blocks.
      training: the run.
    """
    settings = config.optimizer
    scales = optimizer.layer_scales(params, depth, settings.layer_decay)
    # A scorer that learns comes before the first layer.
    scales |= {name: settings.layer_decay ** (depth + 1) for name in scales if name.startswith("pruner.")}
    own = None
    if settings.backbone_scale != 1.0 or settings.freeze_epochs:
        slower = learning_rate(config, training.steps, settings.backbone_scale)
        slower = optimizer.frozen_until(slower, settings.freeze_epochs * training.steps.per_epoch)
        own = {name: slower for name in params if not any(fnmatchcase(name, new) for new in _NEW)}
    return adamw(
        config,
        training.schedule,
        params,
        exempt=_NO_DECAY,
        layer_scales=scales,
        schedules=own,
        frozen=optimizer.frozen_names(params, depth, config.trainable_blocks),
    )
