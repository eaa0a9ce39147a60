"""How weights are named where they come from, a file a source; each turns the names, and layouts, into timm's.

A source whose names are also written has `write(tensors, network)`: {timm's name: array}, with queries, keys and values
in one tensor and gate and value of a SwiGLU in one, to {its name: array}. A tensor that it has no name for is a
`UserError`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxprune.errors import UserError


class Published(NamedTuple):
    """A tensor, and the name that its source gives it."""

    name: str
    tensor: Any


Tensors = dict[str, Published]


def renamed(name: str, table: Sequence[tuple[str, str]]) -> str | None:
    """Returns a name after the first pattern in `table` that is all of it, {its groups} filled in; None if none is."""
    for pattern, template in table:
        if match := re.fullmatch(pattern, name):
            return match.expand(template)
    return None


def inside(tensors: Tensors, prefix: str) -> tuple[Tensors, list[str]]:
    """Returns the tensors whose names begin with `prefix`, without it, and the names of the others."""
    return (
        {name.removeprefix(prefix): entry for name, entry in tensors.items() if name.startswith(prefix)},
        [name for name in tensors if not name.startswith(prefix)],
    )


Table = tuple[tuple[str, str], ...]
Arrays = dict[str, np.ndarray]


def back(table: Sequence[tuple[str, str]], prefer: Collection[str] = ()) -> Table:
    r"""Returns the table of the way back.

    >>> back(((r"layer\.(\d+)\.(?:norm_a|norm1)", r"blocks.\1.norm1"),), ("norm1",))
    (('blocks\\.(?P<g1>\\d+)\\.norm1', 'layer.\\g<g1>.norm1'),)

    Args:
      table: (pattern, template) pairs. A pattern is of literal text, of groups that the template names, and of groups
        `(?:a|b)`, of which it names none.
      prefer: which of several spellings to take; the first where none of these is among them.
    """
    return tuple(_back(pattern, template, prefer) for pattern, template in table)


_GROUP = r"(\((?:\?:)?[^()]*\)\??)"


def _back(pattern: str, template: str, prefer: Collection[str]) -> tuple[str, str]:
    groups: list[str] = []
    there = ""
    for part in re.split(_GROUP, pattern):
        if part.startswith("(?:"):
            options = [option.replace("\\", "") for option in part.removesuffix("?")[3:-1].split("|")]
            there += next((option for option in options if option in prefer), options[0])
        elif part.startswith("("):
            groups.append(part)
            there += rf"\g<g{len(groups)}>"
        else:
            there += part.replace("\\", "")
    here = "".join(
        f"(?P<g{part[1:]}>{groups[int(part[1:]) - 1][1:-1]})" if part.startswith("\\") else re.escape(part)
        for part in re.split(r"(\\\d)", template)
    )
    return here, there


def rename(tensors: Mapping[str, np.ndarray], table: Sequence[tuple[str, str]], whose: str) -> Arrays:
    """Returns the tensors under their names in a table.

    Raises:
      UserError: the table, which is that of `whose` names, has no name for some of them.
    """
    found = {name: renamed(name, table) for name in tensors}
    if nameless := [name for name, other in found.items() if other is None]:
        some = ", ".join(nameless[:4]) + (", …" if len(nameless) > 4 else "")
        raise UserError(f"{whose} has no name for {some}: write the weights under timm's names.")
    return {str(found[name]): tensor for name, tensor in tensors.items()}


def no_network_of(whose: str) -> UserError:
    """The error for a network that has not the parts by which those of a source are known."""
    return UserError(f"This is not a network of {whose}'s: write the weights under timm's names.")


def split_attention(tensors: Mapping[str, np.ndarray]) -> Arrays:
    """Splits queries, keys and values of every block, with the biases there are, into `attn.q`, `attn.k`, `attn.v`."""
    found: Arrays = {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"(.+\.attn\.)qkv\.(weight|bias)", name):
            parts = zip("qkv", np.split(tensor, 3), strict=True)
            found.update({f"{match[1]}{letter}.{match[2]}": part for letter, part in parts})
        elif match := re.fullmatch(r"(.+\.attn\.)([qv])_bias", name):
            found[f"{match[1]}{match[2]}.bias"] = tensor
        else:
            found[name] = tensor
    return found


def split_gates(tensors: Mapping[str, np.ndarray]) -> Arrays:
    """Splits gate and value of every SwiGLU, which are one tensor `mlp.fc1`, into `mlp.fc1_g` and `mlp.fc1_x`."""
    found: Arrays = {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"(.+\.mlp\.)fc1\.(weight|bias)", name):
            gate, value = np.split(tensor, 2)
            found |= {f"{match[1]}fc1_g.{match[2]}": gate, f"{match[1]}fc1_x.{match[2]}": value}
        else:
            found[name] = tensor
    return found


def with_cls_position(tensors: Arrays, network: Any, whose: str) -> Arrays:
    """Puts a row of zeros, for the CLS token, before positions that are of patches only, in a network of registers.

    Raises:
      UserError: positions are of other tokens than those of `whose` networks.
    """
    table = tensors.get("pos_embed")
    if table is None:
        return tensors
    prefix = table.shape[1] - network.num_patches
    if prefix == 0 and "reg_token" in tensors:
        return {**tensors, "pos_embed": np.pad(table, ((0, 0), (1, 0), (0, 0)))}
    if prefix != sum(name in tensors for name in ("cls_token", "dist_token")):
        raise UserError(
            f"{whose} has no name for pos_embed with {prefix} rows before those of the patches: write the weights "
            "under timm's names."
        )
    return tensors
