"""The tensor names and layouts of other sources, one file each; every file converts them to timm's.

A source that can also be written has `write(tensors, network)`, from {timm's name: array} to {its name: array}. The
input has queries, keys and values in one tensor, and so gate and value of a SwiGLU. A tensor without a name in the
source raises a `UserError`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxprune.errors import UserError, shortened


class Published(NamedTuple):
    """A tensor and its name in the source."""

    name: str
    tensor: Any


Tensors = dict[str, Published]


def renamed(name: str, table: Sequence[tuple[str, str]]) -> str | None:
    """Renames by the first (pattern, template) of `table` that matches the whole name; None if none does."""
    for pattern, template in table:
        if match := re.fullmatch(pattern, name):
            return match.expand(template)
    return None


def inside(tensors: Tensors, prefix: str) -> tuple[Tensors, list[str]]:
    """Returns the tensors whose names start with `prefix`, without the prefix, and the names of the others."""
    return (
        {name.removeprefix(prefix): entry for name, entry in tensors.items() if name.startswith(prefix)},
        [name for name in tensors if not name.startswith(prefix)],
    )


Table = tuple[tuple[str, str], ...]
Arrays = dict[str, np.ndarray]


def back(table: Sequence[tuple[str, str]], prefer: Collection[str] = ()) -> Table:
    r"""Returns the inverse of a table.

    >>> back(((r"layer\.(\d+)\.(?:norm_a|norm1)", r"blocks.\1.norm1"),), ("norm1",))
    (('blocks\\.(?P<g1>\\d+)\\.norm1', 'layer.\\g<g1>.norm1'),)

    Args:
      table: (pattern, template) pairs. A pattern consists of literal text, groups that the template refers to, and
        alternatives `(?:a|b)`.
      prefer: the alternatives to choose; the first one where none of these occurs.
    """
    return tuple(_back(pattern, template, prefer) for pattern, template in table)


_GROUP = r"(\((?:\?:)?[^()]*\)\??)"


def _back(pattern: str, template: str, prefer: Collection[str]) -> tuple[str, str]:
    groups: list[str] = []
    inverse_template = ""
    for part in re.split(_GROUP, pattern):
        if part.startswith("(?:"):
            options = [option.replace("\\", "") for option in part.removesuffix("?")[3:-1].split("|")]
            inverse_template += next((option for option in options if option in prefer), options[0])
        elif part.startswith("("):
            groups.append(part)
            inverse_template += rf"\g<g{len(groups)}>"
        else:
            inverse_template += part.replace("\\", "")
    inverse_pattern = "".join(
        f"(?P<g{part[1:]}>{groups[int(part[1:]) - 1][1:-1]})" if part.startswith("\\") else re.escape(part)
        for part in re.split(r"(\\\d)", template)
    )
    return inverse_pattern, inverse_template


def rename(tensors: Mapping[str, np.ndarray], table: Sequence[tuple[str, str]], whose: str) -> Arrays:
    """Renames tensors by a table.

    Args:
      whose: the source of the table, for messages.

    Raises:
      UserError: the table has no name for some tensors.
    """
    names = {name: renamed(name, table) for name in tensors}
    if nameless := [name for name, new in names.items() if new is None]:
        listed = ", ".join(map(shortened, nameless[:4])) + (", …" if len(nameless) > 4 else "")
        raise UserError(f"{whose} has no name for {listed}: write the weights under timm's names.")
    return {str(names[name]): tensor for name, tensor in tensors.items()}


def no_network_of(whose: str) -> UserError:
    """The error for a network without the tensors that identify the networks of a source."""
    return UserError(f"This is not one of {whose}'s networks: write the weights under timm's names.")


def split_attention(tensors: Mapping[str, np.ndarray]) -> Arrays:
    """Splits queries, keys and values of every block, and their biases, into `attn.q`, `attn.k` and `attn.v`."""
    separate: Arrays = {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"(.+\.attn\.)qkv\.(weight|bias)", name):
            parts = zip("qkv", np.split(tensor, 3), strict=True)
            separate.update({f"{match[1]}{letter}.{match[2]}": part for letter, part in parts})
        elif match := re.fullmatch(r"(.+\.attn\.)([qv])_bias", name):
            separate[f"{match[1]}{match[2]}.bias"] = tensor
        else:
            separate[name] = tensor
    return separate


def split_gates(tensors: Mapping[str, np.ndarray]) -> Arrays:
    """Splits every SwiGLU's `mlp.fc1` into the gate `mlp.fc1_g` and the value `mlp.fc1_x`."""
    separate: Arrays = {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"(.+\.mlp\.)fc1\.(weight|bias)", name):
            gate, value = np.split(tensor, 2)
            separate |= {f"{match[1]}fc1_g.{match[2]}": gate, f"{match[1]}fc1_x.{match[2]}": value}
        else:
            separate[name] = tensor
    return separate


def with_cls_position(tensors: Arrays, network: Any, whose: str) -> Arrays:
    """Adds a row of zeros for the CLS token to the positions of a network with registers, whose positions are patches'.

    Raises:
      UserError: the positions are not those of patches, or of patches and the class tokens.
    """
    table = tensors.get("pos_embed")
    if table is None:
        return tensors
    prefix = table.shape[1] - network.num_patches
    if prefix == 0 and "reg_token" in tensors:
        return {**tensors, "pos_embed": np.pad(table, ((0, 0), (1, 0), (0, 0)))}
    if prefix != sum(tensors[name].shape[1] for name in ("cls_token", "dist_token") if name in tensors):
        raise UserError(
            f"{whose} has no name for pos_embed with {prefix} rows before those of the patches: write the weights "
            "under timm's names."
        )
    return tensors
