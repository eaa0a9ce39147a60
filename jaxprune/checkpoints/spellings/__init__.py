"""How weights are named where they come from, a file a source; each turns the names, and layouts, into timm's."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple


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
