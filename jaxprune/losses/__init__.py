"""Losses as plain functions of arrays, beside those of optax such as cross-entropy."""

from jaxprune.losses.class_masks import class_mask_losses
from jaxprune.losses.distillation import feature_distillation, kl_distillation, token_distillation
from jaxprune.losses.exits import distilled_exit_loss, exit_losses
from jaxprune.losses.gates import budget_loss, refinement_loss
from jaxprune.losses.keep_rate import ratio_loss
from jaxprune.losses.multi_label import asymmetric_loss
from jaxprune.losses.pixel_classes import pixel_accuracy, pixel_cross_entropy
from jaxprune.losses.ranking import focused_rank_loss, list_mle_loss, list_net_loss, point_wise_loss, rank_net_loss
from jaxprune.losses.reconstruction import masked_mse

__all__ = [
    "asymmetric_loss",
    "budget_loss",
    "class_mask_losses",
    "distilled_exit_loss",
    "exit_losses",
    "feature_distillation",
    "focused_rank_loss",
    "kl_distillation",
    "list_mle_loss",
    "list_net_loss",
    "masked_mse",
    "pixel_accuracy",
    "pixel_cross_entropy",
    "point_wise_loss",
    "rank_net_loss",
    "ratio_loss",
    "refinement_loss",
    "token_distillation",
]
