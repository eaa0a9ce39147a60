"""The published files of the patch selectors IA-RED² and GFNet, converted to the names of the networks inside them.

The names of a selector's own parts are in the file of its scorer.
"""

import re

import numpy as np

from jaxprune.errors import UserError
from jaxprune.weights.sources import Published, Tensors

_GLANCE = "model_prime_state_dict."
_ENTRIES = (_GLANCE, "model_state_dict.")
_BLOCK = r"groups\.(\d+)\.block_list\.(\d+)\.(.+)"
# The critic, which only the training of the policy needs.
_UNUSED = r"policy\.critic\..+"


def read(tensors: Tensors) -> tuple[Tensors, list[str]] | None:
    """Returns the tensors by timm's names, and the names of those only for training; None if these are other files.

    Raises:
      UserError: the file contains a block twice, with different weights.
    """
    if any(name.startswith(_GLANCE) for name in tensors):
        return _gfnet(tensors)
    if any(re.fullmatch(_BLOCK, name) for name in tensors):
        return _ia_red2(tensors), []
    return None


def _gfnet(tensors: Tensors) -> tuple[Tensors, list[str]]:
    """Removes the prefix of `DataParallel`."""
    named: Tensors = {}
    unused = []
    for name, entry in tensors.items():
        if re.fullmatch(_UNUSED, name):
            unused.append(entry.name)
            continue
        for part in _ENTRIES:
            if name.startswith(f"{part}module."):
                name = part + name.removeprefix(f"{part}module.")
        named[name] = entry
    return named, unused


def _ia_red2(tensors: Tensors) -> Tensors:
    """Renames blocks in groups to one list, which the file may contain as well."""
    matches = {name: re.fullmatch(_BLOCK, name) for name in tensors}
    places = {name: (int(match[1]), int(match[2]), match[3]) for name, match in matches.items() if match}
    sizes = {group: 1 + max(block for g, block, _ in places.values() if g == group) for group, _, _ in places.values()}
    blocks = {name: entry for name, entry in tensors.items() if name not in places}
    for name, (group, block, part) in places.items():
        first = sum(size for earlier, size in sizes.items() if earlier < group)
        timm, entry = f"blocks.{first + block}.{part}", tensors[name]
        if not _same(blocks.setdefault(timm, entry), entry):
            raise UserError(
                f"{blocks[timm].name} and {entry.name} are the same block but differ: list one in ignored=."
            )
    return blocks


def _same(first: Published, second: Published) -> bool:
    return np.array_equal(np.asarray(first.tensor), np.asarray(second.tensor))
