"""Published tensor names and layouts to ours and back: a table of rules per family."""

import contextlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

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


def to_ours(tensors: dict[str, Tensor], rules: tuple[Rule, ...]) -> dict[str, tuple[str, Tensor]]:
    """Returns {our name: (published name, tensor in our layout)}."""
    found = {}
    for name, tensor in tensors.items():
        for rule in rules:
            if re.fullmatch(rule.published, name):
                layout = np.asarray(tensor)
                # A tensor of another rank is left as it is; the strict shape check then names it.
                with contextlib.suppress(ValueError, IndexError):
                    layout = rule.convert(layout)
                found[re.sub(rule.published, rule.ours, name, count=1)] = (name, layout)
                break
    return found
