"""The recipe of a module: how it was built, as plain values, from which saved models are rebuilt."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Recipe(NamedTuple):
    """The call that built a module.

    Attributes:
      kind: "model", "mim", "ranker", "scorer", "dense" or "dynamic": the package whose `create` was called.
      arguments: the arguments of the call, as sorted (name, value) pairs, including the name of the method or network.
    """

    kind: str
    arguments: tuple[tuple[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        """The arguments by name."""
        return dict(self.arguments)


def remember(module: Any, kind: str, arguments: Mapping[str, Any]) -> Any:
    """Stores a recipe on a module, and returns the module.

    Only plain values are kept: initialisers do not matter once there are weights, and modules among the arguments have
    their own recipes.
    """
    plain = {name: _plain(value) for name, value in arguments.items()}
    module.recipe = Recipe(kind, tuple(sorted((name, value) for name, value in plain.items() if value is not _LOST)))
    return module


_LOST = object()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        parts = tuple(_plain(part) for part in value)
        return _LOST if any(part is _LOST for part in parts) else parts
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (np.dtype, type)):
        return np.dtype(value).name
    return _LOST
