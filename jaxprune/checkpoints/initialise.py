"""A classifier that begins with the weights of another run, or with published ones."""

import logging
from typing import Any

from jaxprune.checkpoints.read import load_pretrained
from jaxprune.checkpoints.run import is_ours, load_card, load_model
from jaxprune.errors import UserError
from jaxprune.nn.params import variables
from jaxprune.ops.posembed import resample

_log = logging.getLogger(__name__)


def initialise(model: Any, init: str) -> None:
    """Fills a classifier from a network of ours or from a file of published weights; its head stays new.

    Args:
      model: the classifier.
      init: a run directory, a file that `save_model` wrote, or a published file. A learned position table is resampled
        to the classifier's grid.

    Raises:
      UserError: the weights are of a network of other sizes.
    """
    head = ("head.*", "head_dist.*", "fc_norm.*")
    if not is_ours(init):
        ignored = ("decoder_*", "mask_token", "head.*", "head_dist.*", "fc_norm.*")
        ignored = (*ignored, "norm.*") if model.norm is None else ignored
        load_pretrained(model, init, new=head, ignored=ignored, antialias=False)  # as MAE's fine-tuning does
        return
    pretrained = load_model(init)
    encoder = getattr(pretrained, "encoder", pretrained)
    present, wanted = variables(encoder), variables(model)
    missing = [n for n in wanted if n not in present and not n.startswith(("head", "fc_norm"))]
    if missing:
        raise UserError(f"The model in {init} has no {', '.join(missing[:5])}: fine-tune a model of the same sizes.")
    for name in set(present) & set(wanted):
        value = present[name][...]
        if name == "pos_embed":
            value = resample(value, encoder.grid, model.grid, value.shape[1] - encoder.num_patches)
        if name.startswith("head") and value.shape != wanted[name].shape:
            continue
        if value.shape != wanted[name].shape:
            raise UserError(
                f"{name} is {value.shape} in {init} and {wanted[name].shape} here: give the model the sizes of "
                f"{load_card(init).arguments}."
            )
        wanted[name][...] = value
    _log.info("Initialised from %s.", init)
