"""Initialises a classifier with the weights of another run, or with published ones."""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxprune import mim
from jaxprune.checkpoints.run import backbone, is_ours, load_card, load_model
from jaxprune.errors import UserError
from jaxprune.nn.host import at_path
from jaxprune.nn.params import variables
from jaxprune.weights.open_published import encoder_of
from jaxprune.weights.positions import is_table, resample_to
from jaxprune.weights.read import by_timm, fill, read_tensors
from jaxprune.weights.rules import to_ours
from jaxprune.weights.sources.timm import RELATIVE

_log = logging.getLogger(__name__)

_ANTIALIAS = {"mim": False}  # by the kind of network whose positions are resampled; others have the family's rule
_TABLE = re.compile(rf"blocks\.\d+\.attn\.{RELATIVE}")


def initialise(model: Any, init: str, class_names: Sequence[str] | None = None) -> None:
    """Loads a classifier from a jaxprune network or from published weights; logs whether the head is kept.

    The head is kept if it has the same number of classes and the same pooling, and if the class names, where both are
    known, are the same in the same order. Otherwise it stays newly initialised.

    Args:
      model: the classifier.
      init: a run directory, a file that `save_model` wrote, or a published file. Positions are resampled to the
        classifier's grid by the rule of its family; those of a pre-training framework as in MAE's fine-tuning.
      class_names: of the classifier; without any its head stays new.

    Raises:
      UserError: the weights belong to a network of other sizes.
    """
    if is_ours(init):
        _from_ours(model, init, class_names)
    else:
        _from_published(model, init, class_names)


def _from_published(model: Any, init: str, class_names: Sequence[str] | None) -> None:
    tensors: Any = read_tensors(init)
    if (encoder := encoder_of(tensors)) is not None:
        tensors = encoder
    ignored = mim.beside_encoder()
    found = to_ours(by_timm(tensors, ignored), model)
    shapes = {name: np.shape(entry.tensor) for name, entry in found.items()}
    if not (kept := _keeps_head(model, shapes, init, (), class_names)):
        ignored = (*ignored, *(f"{part}*" for part in model.classifier_parts))
    ignored = (*ignored, "norm.*") if getattr(model, "norm", True) is None else ignored
    new = () if kept else tuple(f"{part}*" for part in model.classifier_parts)
    if not any(name.startswith("head.norm.") for name in shapes):
        new = (*new, "head.norm.*")  # of the mean: an encoder by itself has none
    antialias = None if encoder is None else _ANTIALIAS["mim"]
    fill(model, tensors, str(init), new=new, ignored=ignored, antialias=antialias)


def _from_ours(model: Any, init: str, class_names: Sequence[str] | None) -> None:
    pretrained, card = load_model(init), load_card(init)
    encoder = backbone(pretrained)
    present, wanted = variables(encoder), variables(model)
    if getattr(getattr(encoder, "style", None), "shared_bias", False):
        # Blocks that shared a table in pre-training get their own, as in SimMIM's fine-tuning.
        present |= {name: at_path(encoder, name) for name in wanted if _TABLE.fullmatch(name)}
    missing = [n for n in wanted if n not in present and not n.startswith((*model.classifier_parts, "head.norm."))]
    if missing:
        raise UserError(f"The model in {init} has no {', '.join(missing[:5])}: fine-tune a model of the same sizes.")
    # A norm after the blocks has its place where a classifier pools first, and so has another head.
    passed_over = sorted(
        n for n in present.keys() - wanted.keys() if not n.startswith((*model.classifier_parts, "head.norm.", "norm."))
    )
    if passed_over:
        some = ", ".join(passed_over[:5]) + (f" and {len(passed_over) - 5} more" if len(passed_over) > 5 else "")
        _log.warning("The classifier has no %s, which the model in %s has: they are left out.", some, init)
    shapes = {name: variable.shape for name, variable in present.items()} if card.kind == "model" else {}
    kept = _keeps_head(model, shapes, init, card.class_names, class_names)
    for name in set(present) & set(wanted):
        if name.startswith("head") and name.startswith(model.classifier_parts) and not kept:
            continue
        value = present[name][...]
        if is_table(name):
            value = resample_to(model, name, value, source=encoder, antialias=_ANTIALIAS.get(card.kind))
        if value.shape != wanted[name].shape:
            raise UserError(
                f"{name} is {value.shape} in {init} and {wanted[name].shape} here: give the model the sizes of "
                f"{card.arguments}."
            )
        wanted[name][...] = value


def _keeps_head(
    model: Any,
    shapes: Mapping[str, tuple[int, ...]],
    init: str,
    theirs: Sequence[str],
    ours: Sequence[str] | None,
) -> bool:
    """Whether a classifier keeps the loaded head; logs the decision and the reason.

    Args:
      shapes: by our name, of what the weights are there for.
      theirs, ours: names of the classes; empty where they are not known, `ours` None for a head that stays new.
    """
    parts = model.classifier_parts
    own = {name: variable.shape for name, variable in variables(model).items() if name.startswith(parts)}
    head = {name: shape for name, shape in shapes.items() if name.startswith(parts)}
    classes = lambda head: next(head[name][-1] for name in ("head.kernel", "head.fc.kernel") if name in head)
    if ours is None or not any(name.startswith("head.") for name in head):
        reason = "" if ours is None else ": the weights have no head"
    elif head.keys() != own.keys():
        reason = ": the loaded one has another pooling"
    elif head != own:
        reason = f": the one in it is of {classes(head)} classes, and here are {classes(own)}"
    elif _named(theirs) and _named(ours) and tuple(theirs) != tuple(ours):
        pair = next((one, other) for one, other in zip(theirs, ours, strict=True) if one != other)
        reason = f": the one in it is of other classes, such as {pair[0]!r} in place of {pair[1]!r}"
    else:
        _log.info("Initialised from %s, with its head of %d classes.", init, classes(own))
        return True
    _log.info("Initialised from %s, with a new head%s.", init, reason)
    return False


def _named(names: Sequence[str]) -> bool:
    """Whether classes have names instead of just numbers."""
    return bool(names) and tuple(names) != tuple(map(str, range(len(names))))
