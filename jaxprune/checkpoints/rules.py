"""Published tensor names and layouts to ours and back: a table of rules per family."""

import contextlib
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxprune.checkpoints.families import Published
from jaxprune.errors import UserError
from jaxprune.models.convnet import ConvNet
from jaxprune.nn import Host
from jaxprune.nn.params import variables

Tensor = np.ndarray


class Rule(NamedTuple):
    """How one kind of published tensor is stored here.

    Attributes:
      published: the published name; a field such as {norm} stands for a part of it, see `_FIELDS`.
      ours: the dotted name here, with the same fields.
      convert: published layout to ours.
      revert: our layout to the published one, given the network's (rows, columns) of a patch.
    """

    published: str
    ours: str
    convert: Callable[[Tensor], Tensor] = lambda tensor: tensor
    revert: Callable[[Tensor, tuple[int, int]], Tensor] = lambda tensor, patch_size: tensor


_FIELDS = {
    "norm": r"(?:.*\.)?\w*norm\d?",
    "batch_norm": r"(?:.*\.)?(?:bn\d?|rbr_skip|downsample\.1)",
    "any": r".+",
}


def _linear(tensor: Tensor) -> Tensor:
    return tensor.T


def _linear_back(tensor: Tensor, patch_size: tuple[int, int]) -> Tensor:
    return tensor.T


def _patch_projection(tensor: Tensor) -> Tensor:
    # (out, channel, row, column) to a matrix over (row, column, channel)
    return tensor.transpose(2, 3, 1, 0).reshape(-1, tensor.shape[0])


def _patch_projection_back(tensor: Tensor, patch_size: tuple[int, int]) -> Tensor:
    return tensor.reshape(*patch_size, -1, tensor.shape[1]).transpose(3, 2, 0, 1)


def _depthwise(tensor: Tensor) -> Tensor:
    return tensor[:, 0].transpose(1, 2, 0)


def _depthwise_back(tensor: Tensor, patch_size: tuple[int, int]) -> Tensor:
    return tensor.transpose(2, 0, 1)[:, None]


def _convolution(tensor: Tensor) -> Tensor:
    # (out, in, row, column) to (row, column, in, out); what has no rows and columns is a linear layer.
    return tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T


def _convolution_back(tensor: Tensor, patch_size: tuple[int, int]) -> Tensor:
    return tensor.transpose(3, 2, 0, 1) if tensor.ndim == 4 else tensor.T


# Order matters both ways: the first rule that matches is taken.
_LAYERS = (
    Rule("{norm}.weight", "{norm}.scale"),
    Rule("{any}.weight", "{any}.kernel", _linear, _linear_back),
    Rule("{any}", "{any}"),
)
VIT = (
    Rule("patch_embed.proj.weight", "patch_embed.proj.kernel", _patch_projection, _patch_projection_back),
    *_LAYERS,
)


CONVNET = (
    Rule("{batch_norm}.weight", "{batch_norm}.scale"),
    Rule("{batch_norm}.running_mean", "{batch_norm}.mean"),
    Rule("{batch_norm}.running_var", "{batch_norm}.var"),
    Rule("{any}.weight", "{any}.kernel", _convolution, _convolution_back),
    Rule("{any}", "{any}"),
)


def _within(published: str, ours: str, rules: tuple[Rule, ...] = _LAYERS) -> tuple[Rule, ...]:
    return tuple(rule._replace(published=published + rule.published, ours=ours + rule.ours) for rule in rules)


# MAE's repository keeps encoder and decoder side by side; here the encoder is a ViT of its own. Of PR-MIM's
# aggregation no weights were published: "agg" is what a PyTorch module of that name would save.
MAE = (
    Rule("agg.weight", "aggregate.kernel", _depthwise, _depthwise_back),
    Rule("agg.conv_dw.weight", "aggregate.conv_dw.kernel", _depthwise, _depthwise_back),
    *_within("agg.", "aggregate."),
    Rule("aggregate.weight", "aggregate.kernel", _depthwise),
    *_within("aggregate.", "aggregate."),
    Rule("mask_token", "mask_token"),
    *_within("decoder_", "decoder_"),
    *_within("", "encoder.", VIT),
)


def rules_for(model: Any) -> tuple[Rule, ...]:
    """Returns the rules of the family that a network belongs to."""
    if isinstance(model, ConvNet):
        return CONVNET
    return MAE if hasattr(model, "decoder_blocks") else VIT


def to_ours(tensors: Mapping[str, Published], model: Any) -> dict[str, Published]:
    """Turns {timm's name: tensor} into {our name: tensor in our layout} for the family that `model` belongs to.

    Raises:
      UserError: two published tensors would be one of ours.
    """
    rules, modules = rules_for(model), method_modules(model)
    found: dict[str, Published] = {}
    for name, (published, tensor) in tensors.items():
        rule, ours = _apply(rules, _place(name, modules), back=False)
        layout = np.asarray(tensor)
        # A tensor of another rank is left as it is; the strict shape check then names it.
        with contextlib.suppress(ValueError, IndexError):
            layout = rule.convert(layout)
        if ours in found:
            raise UserError(f"{found[ours].name} and {published} both stand for {ours}: list one of them in ignored=.")
        found[ours] = Published(published, layout)
    return found


def to_published(model: Any) -> dict[str, Tensor]:
    """Returns all weights of a network in PyTorch's layouts, under timm's names (of a MAE: its repository's).

    The modules of a token-reduction method have the names that were published with them.
    """
    rules = rules_for(model)
    modules = {ours: theirs for theirs, ours in method_modules(model).items()}
    modules = dict(sorted(modules.items(), key=lambda pair: -len(pair[0])))
    # A network without patches has no rule that asks for their size.
    patch_size = getattr(getattr(getattr(model, "encoder", model), "patch_embed", None), "patch_size", (1, 1))
    tensors = {}
    for name, variable in variables(model).items():
        rule, published = _apply(rules, name, back=True)
        layout = rule.revert(np.asarray(variable[...]), patch_size)
        tensors[_place(published, modules)] = np.array(layout, order="C")
    return tensors


def _apply(rules: tuple[Rule, ...], name: str, *, back: bool) -> tuple[Rule, str]:
    """Returns the first rule that knows a name, and the name on the other side."""
    for rule in rules:
        source, target = (rule.ours, rule.published) if back else (rule.published, rule.ours)
        match = _pattern(source).fullmatch(name)
        if match:
            return rule, target.format(**match.groupdict())
    raise UserError(f"The weights of {name} have no published name.")


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    return re.compile("".join(f"(?P<{p}>{_FIELDS[p]})" if i % 2 else re.escape(p) for i, p in enumerate(parts)))


def method_modules(model: Any) -> dict[str, str]:
    """Returns {published path of a module of a token-reduction method: ours}, longer paths before shorter ones.

    Published networks list a method's modules beside the blocks, a step each; ours sit in the blocks they belong to.
    """
    paths = {}
    counted: dict[str, int] = {}
    for site in model.sites() if isinstance(model, Host) else ():
        reducer = model.block(site).reducer
        if reducer is None or reducer.published is None:
            continue
        number = counted[reducer.published] = counted.get(reducer.published, -1) + 1
        theirs, ours = f"{reducer.published}.{number}", f"{site.path}.reducer"
        paths[theirs] = ours
        paths.update({f"{theirs}.{a}": f"{ours}.{b}" for a, b in reducer.renames.items()})
    return dict(sorted(paths.items(), key=lambda pair: -len(pair[0])))


def _place(name: str, modules: dict[str, str]) -> str:
    for theirs, ours in modules.items():
        if name.startswith(theirs + "."):
            return ours + name.removeprefix(theirs)
    return name
