"""Converts published tensor names and layouts to ours and back, with a table of rules per family."""

import contextlib
import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxprune.dense.parts.base import DenseNetwork
from jaxprune.errors import UserError
from jaxprune.mim import Framework
from jaxprune.models.convnet import ConvNet
from jaxprune.nn import Host
from jaxprune.nn.params import variables
from jaxprune.nn.patch_embed import pair
from jaxprune.nn.tensor_rules import (
    LAYERS,
    Rule,
    Tensor,
    batch_norm,
    convolution,
    convolution_back,
    patches,
    patches_back,
    within,
)
from jaxprune.scoring import Scorer
from jaxprune.weights.sources import Published, timm

# The patterns for the fields in the names of a rule.
_FIELDS = {
    "norm": r"(?:.*\.)?(?:\w*norm\d?|norm_pre)",
    "batch_norm": r"(?:.*\.)?(?:bn\d?|rbr_skip|downsample\.1)",
    "any": r".+",
}


VIT = (
    Rule("patch_embed.proj.weight", "patch_embed.proj.kernel", patches, patches_back),
    *LAYERS,
)


CONVNET = (
    *batch_norm("{batch_norm}", "{batch_norm}"),
    Rule("{any}.weight", "{any}.kernel", convolution, convolution_back),
    Rule("{any}", "{any}"),
)


def rules_for(model: Any) -> tuple[Rule, ...]:
    """Returns the rules of the family that a network belongs to.

    For a framework, these include the rules of its encoder, and for a scorer those of its networks.
    """
    if isinstance(model, Framework | DenseNetwork):
        return (*model.published_rules, *within("", "encoder.", rules_for(model.encoder)))
    if isinstance(model, Scorer):
        places = {prefix: place for prefix, place in model.published_networks.items() if getattr(model, place, None)}
        networks = (
            within(prefix, f"{attribute}.", rules_for(getattr(model, attribute)))
            for prefix, attribute in places.items()
        )
        return (*model.published_rules, *(rule for rules in networks for rule in rules))
    family = getattr(model, "published_rules", None)
    return family or (CONVNET if isinstance(model, ConvNet) else VIT)


def owns(scorer: type[Scorer], name: str) -> bool:
    """Whether a published tensor belongs to the scorer itself, and not to one of its networks."""
    return any(_pattern(rule.published).fullmatch(name) for rule in scorer.published_rules)


def to_ours(tensors: Mapping[str, Published], model: Any) -> dict[str, Published]:
    """Converts {timm's name: tensor} to {our name: tensor in our layout}, for the family that `model` belongs to.

    Raises:
      UserError: two published tensors map to the same tensor of ours.
    """
    rules, modules = rules_for(model), method_modules(model, every_spelling=True)
    entries: dict[str, Published] = {}
    for name, (published, tensor) in tensors.items():
        rule, target = _apply(rules, _place(name, modules), back=False)
        layout = np.asarray(tensor)
        # A tensor of another rank is not converted; the strict shape check then reports it.
        with contextlib.suppress(ValueError, IndexError):
            layout = rule.convert(layout)
        if target in entries:
            raise UserError(
                f"{entries[target].name} and {published} both map to {target}: list one of them in ignored=."
            )
        entries[target] = Published(published, layout)
    targets = variables(model)
    return _fitted_biases(_unshared(entries, targets), targets)


def _unshared(entries: dict[str, Published], targets: Mapping[str, Any]) -> dict[str, Published]:
    """Copies a table of relative positions that all blocks share in a file to every block that has its own table.

    SimMIM pre-trains with a shared table and fine-tunes with a table for each block.
    """
    name = next((name for name in entries if name.endswith(timm.SHARED)), None)
    if name is None or name in targets:
        return entries
    of_block = re.compile(rf"{re.escape(name.removesuffix(timm.SHARED))}blocks\.\d+\.attn\.{timm.RELATIVE}")
    tables = [target for target in targets if of_block.fullmatch(target)]
    # If there are none, the strict check that follows reports the table.
    rest = {target: entry for target, entry in entries.items() if target != name or not tables}
    return {**rest, **dict.fromkeys(tables, entries[name])}


def _fitted_biases(entries: dict[str, Published], targets: Mapping[str, Any]) -> dict[str, Published]:
    """Adapts the biases of queries, keys and values to a network without them, or without those of the keys.

    Biases that the network does not have are left out if they are zero, as in DINOv3's files.
    """
    fitted: dict[str, Published] = {}
    for name, entry in entries.items():
        place = name.removesuffix("qkv.bias")
        zero = not np.any(entry.tensor)
        if name in targets or not name.endswith(("attn.qkv.bias", "attn.q_bias", "attn.v_bias")):
            fitted[name] = entry
        elif f"{place}q_bias" in targets and np.ndim(entry.tensor) == 1 and len(entry.tensor) % 3 == 0:
            q, k, v = np.split(entry.tensor, 3)
            if np.any(k):
                fitted[name] = entry  # the check that follows reports it
            else:
                fitted |= {f"{place}q_bias": entry._replace(tensor=q), f"{place}v_bias": entry._replace(tensor=v)}
        elif not zero or f"{name.rpartition('.')[0]}.qkv.bias" in targets:
            fitted[name] = entry
    return fitted


def to_published(model: Any) -> dict[str, Tensor]:
    """Returns all weights of a network in PyTorch's layouts under timm's names (a framework's under its own names).

    The modules of a token-reduction method have the names of its publication.
    """
    encoder = getattr(model, "encoder", model)
    style, grid = getattr(encoder, "style", None), getattr(encoder, "grid", ())
    spelling, wrapped = () if style is None else style.names, ""
    if encoder is not model:
        spelling = tuple(name for name in spelling if name != "encoder")  # what is around it has names of its own
    if isinstance(model, DenseNetwork):
        wrapped = model.published_encoder
    elif isinstance(model, Framework):
        spelling, wrapped = (*spelling, *model.weight_source), model.published_encoder
    named = {place: timm.write(part, spelling, grid) for place, part in _by_place(model, wrapped).items()}
    return {place + name: tensor for place, part in named.items() for name, tensor in part.items()}


def to_one_spelling(model: Any) -> dict[str, Tensor]:
    """Returns the same weights as `to_published`, for every family under the names of timm's `VisionTransformer`."""
    return _by_place(model, "")[""]


def _by_place(model: Any, wrapped: str) -> dict[str, dict[str, Tensor]]:
    """Returns {"": {published name: tensor}}, with the tensors of a framework's encoder under the key `wrapped`."""
    rules = rules_for(model)
    modules = {path: source for source, path in method_modules(model).items()}
    modules = dict(sorted(modules.items(), key=lambda pair: -len(pair[0])))
    # The rules of a network without patches do not use their size.
    encoder = getattr(model, "encoder", model)
    patch_size = pair(getattr(getattr(encoder, "patch_embed", encoder), "patch_size", 1))
    inside = ("encoder.", *getattr(model, "beside_encoder", ()))
    tensors: dict[str, dict[str, Tensor]] = {wrapped: {}, "": {}}
    for name, variable in variables(model).items():
        rule, published = _apply(rules, name, back=True)
        layout = rule.revert(np.asarray(variable[...]), patch_size)
        place = wrapped if name.startswith(inside) else ""
        tensors[place][_place(published, modules)] = np.array(layout, order="C")
    return tensors


def published_names(model: Any) -> set[str]:
    """Returns the published names of a network's tensors, without converting any."""
    rules = rules_for(model)
    return {_apply(rules, name, back=True)[1] for name in variables(model)}


def _apply(rules: tuple[Rule, ...], name: str, *, back: bool) -> tuple[Rule, str]:
    """Returns the first rule that matches a name, and the name that it gives."""
    for rule in rules:
        source, target = (rule.path, rule.published) if back else (rule.published, rule.path)
        match = _pattern(source).fullmatch(name)
        if match:
            return rule, target.format(**match.groupdict())
    raise UserError(f"The weights of {name} have no published name.")


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    return re.compile("".join(f"(?P<{p}>{_FIELDS[p]})" if i % 2 else re.escape(p) for i, p in enumerate(parts)))


def method_modules(model: Any, *, every_spelling: bool = False) -> dict[str, str]:
    """Returns {published path of a module of a token-reduction method: our path}, longer paths first.

    Published networks have a list of a method's modules beside the blocks, one per step, or modules of the blocks; ours
    belong to the reducers of the blocks.

    Args:
      every_spelling: include the names of `Reducer.also_published`.
    """
    paths = {}
    counted: dict[str, int] = {}
    for site in model.sites() if isinstance(model, Host) else ():
        reducer = model.block(site).reducer
        if reducer is None or reducer.published is None:
            continue
        path = f"{site.path}.reducer"
        if "{layer}" in reducer.published:
            published = reducer.published.format(layer=site.layer)
        else:
            number = counted[reducer.published] = counted.get(reducer.published, -1) + 1
            published = f"{reducer.published}.{number}"
            paths[published] = path
        spellings = reducer.also_published if every_spelling else ()
        for spelling in (published, *(pattern.format(layer=site.layer) for pattern in spellings)):
            paths.update({f"{spelling}.{a}".rstrip("."): f"{path}.{b}" for a, b in reducer.renames.items()})
    return dict(sorted(paths.items(), key=lambda pair: -len(pair[0])))


def _place(name: str, modules: dict[str, str]) -> str:
    for published, path in modules.items():
        if f"{name}.".startswith(f"{published}."):
            return path + name.removeprefix(published)
    return name
