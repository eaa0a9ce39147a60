"""Published tensor names and layouts to ours: a table of rules per family."""

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxprune.errors import UserError

Tensor = np.ndarray


class Rule(NamedTuple):
    """How one kind of published tensor is stored here.

    Attributes:
      published: regular expression of the whole published name.
      ours: the dotted name here, with the groups of `published`.
      convert: published layout to ours.
    """

    published: str
    ours: str
    convert: Callable[[Tensor], Tensor] = lambda tensor: tensor


def _linear(tensor: Tensor) -> Tensor:
    return tensor.T


def _patch_projection(tensor: Tensor) -> Tensor:
    # (out, channel, row, column) to a matrix over (row, column, channel)
    return tensor.transpose(2, 3, 1, 0).reshape(-1, tensor.shape[0])


def _depthwise(tensor: Tensor) -> Tensor:
    return tensor[:, 0].transpose(1, 2, 0)


# Order matters: the first rule that matches is taken.
VIT = (
    Rule(r"patch_embed\.proj\.weight", "patch_embed.proj.kernel", _patch_projection),
    Rule(r"((?:.*\.)?\w*norm\d?)\.weight", r"\1.scale"),
    Rule(r"(.*)\.weight", r"\1.kernel", _linear),
    Rule(r"(.*)", r"\1"),
)

# MAE's repository keeps encoder and decoder side by side; here the encoder is a ViT of its own.
MAE = (
    Rule(r"(?:agg|aggregate)\.weight", "aggregate.kernel", _depthwise),
    Rule(r"(?:agg|aggregate)\.bias", "aggregate.bias"),
    Rule(r"decoder_pos_embed|mask_token", r"\g<0>"),
    Rule(r"(decoder_norm)\.weight", r"\1.scale"),
    Rule(r"(decoder_.*norm\d?)\.weight", r"\1.scale"),
    Rule(r"(decoder_.*)\.weight", r"\1.kernel", _linear),
    Rule(r"(decoder_.*)", r"\1"),
    *(Rule(rule.published, "encoder." + rule.ours, rule.convert) for rule in VIT),
)


def rules_for(model: Any) -> tuple[Rule, ...]:
    """Returns the rules of the family that a network belongs to."""
    return MAE if hasattr(model, "decoder_blocks") else VIT


def to_ours(tensors: Mapping[str, Any], model: Any) -> dict[str, tuple[str, Tensor]]:
    """Returns {our name: (published name, tensor in our layout)} for the family that `model` belongs to.

    Raises:
      UserError: two published tensors would be one of ours.
    """
    rules, modules = rules_for(model), method_modules(model)
    found: dict[str, tuple[str, Tensor]] = {}
    for name, tensor in tensors.items():
        published = _place(name, modules)
        rule = next(rule for rule in rules if re.fullmatch(rule.published, published))
        layout = np.asarray(tensor)
        # A tensor of another rank is left as it is; the strict shape check then names it.
        with contextlib.suppress(ValueError, IndexError):
            layout = rule.convert(layout)
        ours = re.sub(rule.published, rule.ours, published, count=1)
        if ours in found:
            raise UserError(f"{found[ours][0]} and {name} both stand for {ours}: list one of them in ignored=.")
        found[ours] = (name, layout)
    return found


def method_modules(model: Any) -> dict[str, str]:
    """Returns {published path of a module of a token-reduction method: ours}, longer paths before shorter ones.

    Published networks list a method's modules beside the blocks, a stage each; ours sit in the blocks they belong to.
    """
    paths = {}
    for layer, block in enumerate(getattr(model, "blocks", ())):
        reducer = getattr(block, "reducer", None)
        if reducer is None or reducer.published is None:
            continue
        theirs, ours = f"{reducer.published}.{reducer.stage.index}", f"blocks.{layer}.reducer"
        paths[theirs] = ours
        paths.update({f"{theirs}.{a}": f"{ours}.{b}" for a, b in reducer.renames.items()})
    return dict(sorted(paths.items(), key=lambda pair: -len(pair[0])))


def _place(name: str, modules: dict[str, str]) -> str:
    for theirs, ours in modules.items():
        if name.startswith(theirs + "."):
            return ours + name.removeprefix(theirs)
    return name
