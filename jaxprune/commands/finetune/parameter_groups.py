"""The learning rates of fine-tuning: by layer, and separately for pre-trained parameters."""

import functools
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import optax

from jaxprune import reduction
from jaxprune.commands.shared.training import Length, build_optimizer, learning_rate, steps_of_epoch
from jaxprune.config import Config
from jaxprune.errors import UserError, quoted
from jaxprune.models.convnet import ConvNet
from jaxprune.nn import Host
from jaxprune.train import optimizer

_OF_METHOD = "*.reducer.*"

# Parameters with the full rate if the backbone has its own ("Which Tokens to Use?", supplement B).
_NEW = (
    "head.*",
    "head_dist.*",
    "pos_embed*",
    "patch_embed.*",
    "stem.*",
    _OF_METHOD,
    "fc.*",
    "linear.*",
    "classifier.*",
)


def grouped_optimizer(
    config: Config, params: dict[str, Any], model: Host | ConvNet, steps: Length
) -> optax.GradientTransformation:
    """Builds the optimizer of `config.optimizer`, `config.trainable_blocks` and `config.only_method`.

    Args:
      params: {dotted name: array} of the network's parameters.
      model: the network.
      steps: the length of the run.
    """
    settings = config.optimizer
    layers, depth = _layers(params, model)
    scales = optimizer.layer_scales(layers, depth, settings.layer_decay)
    frozen = frozen_names(config, params, model)
    grouped = build_optimizer(
        config,
        learning_rate(config, steps),
        params,
        exempt=model.no_decay,
        layer_scales=scales if settings.limits_decay else None,
        schedules=_schedules(config, scales, model, steps) or None,
        frozen=frozen,
    )
    constraints = reduction.constraints(model) if isinstance(model, Host) else {}
    return optimizer.with_constraints(grouped, {name: constraints[name] for name in constraints if name not in frozen})


def frozen_names(config: Config, params: Mapping[str, Any], model: Host | ConvNet) -> tuple[str, ...]:
    """Returns the parameters that do not train by `config.trainable_blocks` and `config.only_method`.

    Args:
      params, model: see `grouped_optimizer`.

    Raises:
      UserError: there are fewer blocks, or no parameters of methods.
    """
    layers, depth = _layers(params, model)
    return (*optimizer.frozen_names(layers, depth, config.trainable_blocks), *_outside_methods(config, params))


def _layers(params: Mapping[str, Any], model: Host | ConvNet) -> tuple[dict[str, int], int]:
    """The layer of each parameter, a trained scorer's before the first, and the number of blocks."""
    layers = model.parameter_layers(params) | {name: 0 for name in params if name.startswith("pruner.")}
    return layers, len(model.sites()) if isinstance(model, Host) else 0


def _outside_methods(config: Config, params: Mapping[str, Any]) -> tuple[str, ...]:
    """The parameters that do not train where only those of the methods of the plan do.

    Raises:
      UserError: these have none.
    """
    if not config.only_method:
        return ()
    outside = tuple(name for name in params if not fnmatchcase(name, _OF_METHOD))
    if len(outside) == len(params):
        raise UserError(
            "only_method=True trains the parameters of the plan's methods, and "
            f"reduction.method={quoted(config.reduction.method)} has none: choose one that has, such as dtem, or set "
            "only_method=False."
        )
    return outside


def _schedules(
    config: Config, scales: dict[str, float], model: Host | ConvNet, steps: Length
) -> dict[str, optimizer.Schedule]:
    """The schedules of the parameters that do not follow the run's own, scaled by layer; by name.

    Args:
      scales: by name, see `optimizer.layer_scales`.
    """
    settings = config.optimizer

    @functools.cache  # the optimizer computes one rate for each schedule
    def schedule(scale: float, pretrained: bool) -> optimizer.Schedule:
        rates = learning_rate(config, steps, scale * (settings.backbone_scale if pretrained else 1.0))
        frozen_steps = settings.freeze_epochs * steps_of_epoch(config, steps)
        return optimizer.frozen_until(rates, frozen_steps) if pretrained else rates

    by_name = {}
    new_names = (*_NEW, *(f"{part}*" for part in model.classifier_parts if part != "fc_norm."))
    has_backbone_schedule = settings.backbone_scale != 1.0 or bool(settings.freeze_epochs)
    for name, scale in scales.items():
        pretrained = has_backbone_schedule and not any(fnmatchcase(name, new) for new in new_names)
        if pretrained or not settings.limits_decay:
            by_name[name] = schedule(1.0 if settings.limits_decay else scale, pretrained)
    return by_name
