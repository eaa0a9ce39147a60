"""Initialises a classifier with the weights of a run, or with published ones."""

import logging
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from jaxprune import mim
from jaxprune.checkpoints.run import backbone, load_card, load_model
from jaxprune.errors import UserError
from jaxprune.nn.host import at_path
from jaxprune.nn.params import variables
from jaxprune.open.origin import Origin, Published, Random, Run
from jaxprune.weights.open_published import encoder_of
from jaxprune.weights.positions import is_table, resample_to
from jaxprune.weights.read import by_timm, fill, read_tensors
from jaxprune.weights.rules import to_ours
from jaxprune.weights.sources.timm import RELATIVE

_log = logging.getLogger(__name__)

_ANTIALIAS = {"mim": False}  # by the kind of network whose positions are resampled; others have the family's rule
_TABLE = re.compile(rf"blocks\.\d+\.attn\.{RELATIVE}")


def initialise(model: Any, origin: Origin, class_names: Sequence[str] | None = None) -> None:
    """Loads a classifier from a jaxprune network or from published weights; logs whether the head is kept.

    The head is kept if it has the same number of classes and the same pooling, and if the class names, where both are
    known, are the same in the same order. Otherwise it stays newly initialised.

    Args:
      model: the classifier. Positions are resampled to its grid by the rule of its family; those of a pre-training
        framework as in MAE's fine-tuning.
      origin: of the weights; its name does not matter. Random ones leave the classifier as it is.
      class_names: of the classifier; without any its head stays new.

    Raises:
      UserError: the weights belong to a network of other sizes.
    """
    match origin:
        case Run():
            _from_run(model, origin, class_names)
        case Random():
            _log.info("Not initialised: the weights are random.")
        case _:
            _from_published(model, origin, class_names)


def _from_published(model: Any, origin: Published, class_names: Sequence[str] | None) -> None:
    tensors: Any = read_tensors(origin.weights)
    if (encoder := encoder_of(tensors)) is not None:
        tensors = encoder
    ignored = mim.non_encoder_patterns()
    named = to_ours(by_timm(tensors, ignored), model)
    shapes = {name: np.shape(entry.tensor) for name, entry in named.items()}
    if not (kept := _keeps_head(model, shapes, origin, (), class_names)):
        ignored = (*ignored, *(f"{part}*" for part in model.classifier_parts))
    ignored = (*ignored, "norm.*") if getattr(model, "norm", True) is None else ignored
    new = () if kept else tuple(f"{part}*" for part in model.classifier_parts)
    if not any(name.startswith("head.norm.") for name in shapes):
        new = (*new, "head.norm.*")  # of the mean: an encoder by itself has none
    if beside := _beside_pretraining(model):
        new = (*new, *beside)
        ignored = (*ignored, "cls_token", "norm.*", "fc_norm.*")
    antialias = None if encoder is None else _ANTIALIAS["mim"]
    fill(model, tensors, str(origin.weights), new=new, ignored=ignored, antialias=antialias)


def _beside_pretraining(model: Any) -> tuple[str, ...]:
    """What a host has besides a pre-trained encoder; such a host has no CLS token and no norm at its end."""
    return getattr(model, "beside_pretraining", ())


def _from_run(model: Any, origin: Run, class_names: Sequence[str] | None) -> None:
    pretrained, card = load_model(origin.path), load_card(origin.path)
    encoder = backbone(pretrained)
    present, targets = variables(encoder), variables(model)
    if getattr(getattr(encoder, "style", None), "shared_bias", False):
        # Blocks that shared a table in pre-training get their own, as in SimMIM's fine-tuning.
        present |= {name: at_path(encoder, name) for name in targets if _TABLE.fullmatch(name)}
    if getattr(model, "cls_token_mlp", None) is not None and hasattr(pretrained, "cls_token_mlp"):
        # The MLP goes on learning (TEC); the backbone's CLS token is what it makes of the learned one.
        present |= {name: of_tec for name, of_tec in variables(pretrained).items() if name.startswith("cls_token_mlp.")}
        present["cls_token"] = pretrained.encoder.cls_token
    missing = [n for n in targets if n not in present and not n.startswith((*model.classifier_parts, "head.norm."))]
    missing = [n for n in missing if not any(fnmatchcase(n, pattern) for pattern in _beside_pretraining(model))]
    if missing:
        raise UserError(f"The model in {origin} has no {', '.join(missing[:5])}: fine-tune a model of the same sizes.")
    # A norm after the blocks has its place where a classifier pools first, and so has another head.
    passed_over = sorted(
        n for n in present.keys() - targets.keys() if not n.startswith((*model.classifier_parts, "head.norm.", "norm."))
    )
    if passed_over:
        listed = ", ".join(passed_over[:5]) + (f" and {len(passed_over) - 5} more" if len(passed_over) > 5 else "")
        _log.warning("The classifier has no %s, which the model in %s has: they are left out.", listed, origin)
    shapes = {name: variable.shape for name, variable in present.items()} if card.kind == "model" else {}
    kept = _keeps_head(model, shapes, origin, card.class_names, class_names)
    for name in set(present) & set(targets):
        if _of_classifier(name, model) and not kept:
            continue
        value = present[name][...]
        if is_table(name):
            value = resample_to(model, name, value, source=encoder, antialias=_ANTIALIAS.get(card.kind))
        if value.shape != targets[name].shape:
            raise UserError(
                f"{name} is {value.shape} in {origin} and {targets[name].shape} here: give the model the sizes of "
                f"{card.arguments}."
            )
        targets[name][...] = value
    model.training_images = getattr(pretrained, "training_images", None)


def _keeps_head(
    model: Any,
    shapes: Mapping[str, tuple[int, ...]],
    origin: Origin,
    recorded: Sequence[str],
    class_names: Sequence[str] | None,
) -> bool:
    """Whether a classifier keeps the loaded head; logs the decision and the reason.

    Args:
      shapes: by our name, of what the weights are there for.
      recorded: names of the classes of the loaded head; empty where they are not known.
      class_names: of the classifier; empty where they are not known, None for a head that stays new.
    """
    parts = model.classifier_parts
    fresh = {name: variable.shape for name, variable in variables(model).items() if name.startswith(parts)}
    head = {name: shape for name, shape in shapes.items() if name.startswith(parts)}
    classes = lambda head: next(shape[-1] for name, shape in head.items() if name.endswith(".kernel"))
    if class_names is None or not any(_of_classifier(name, model) for name in head):
        reason = "" if class_names is None else ": the weights have no head"
    elif head.keys() != fresh.keys():
        reason = ": the loaded one has another pooling"
    elif head != fresh:
        reason = f": the one in it is of {classes(head)} classes, and here are {classes(fresh)}"
    elif _named(recorded) and _named(class_names) and tuple(recorded) != tuple(class_names):
        old, new = next(pair for pair in zip(recorded, class_names, strict=True) if pair[0] != pair[1])
        reason = f": the one in it is of other classes, such as {old!r} in place of {new!r}"
    else:
        _log.info("Initialised from %s, with its head of %d classes.", origin, classes(fresh))
        return True
    _log.info("Initialised from %s, with a new head%s.", origin, reason)
    return False


def _of_classifier(name: str, model: Any) -> bool:
    """Whether a parameter is of the classifier itself, and not of a norm in front of it."""
    return name.startswith(model.classifier_parts) and not name.startswith("fc_norm.")


def _named(names: Sequence[str]) -> bool:
    """Whether classes have names instead of just numbers."""
    return bool(names) and tuple(names) != tuple(map(str, range(len(names))))
