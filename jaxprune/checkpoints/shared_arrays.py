"""The arrays of a cascade in a file: those that its networks have in common stand there once."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxprune.dynamic.cascade import Cascade
from jaxprune.errors import UserError, quoted
from jaxprune.nn.params import variables

_PREFIX = "networks.{}."


def arrays_of(cascade: Cascade) -> dict[str, np.ndarray]:
    """Returns all arrays of the networks by dotted name, also where two networks have the same."""
    return {
        _PREFIX.format(index) + name: np.asarray(variable[...])
        for index, network in enumerate(cascade.networks)
        for name, variable in variables(network).items()
    }


def stored_once(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns the arrays without those that are equal to an earlier one, and {name of such a one: the earlier name}.

    >>> arrays, shared = stored_once({"a": np.ones(2), "b": np.zeros(2), "c": np.ones(2)})
    >>> sorted(arrays), shared
    (['a', 'b'], {'c': 'a'})
    """
    first: dict[Any, str] = {}
    stored, shared = {}, {}
    for name, array in arrays.items():
        digest = hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8).data).digest() if array.size else b""
        earlier = first.setdefault((array.shape, array.dtype.str, digest), name)
        if earlier == name:
            stored[name] = array
        else:
            shared[name] = earlier
    return stored, shared


def of_networks(stored: Mapping[str, Any], shared: Mapping[str, str], count: int, source: Any) -> list[dict[str, Any]]:
    """Returns the arrays of each network from what `stored_once` returned.

    Args:
      count: of the networks.
      source: name of the file in messages.

    Raises:
      UserError: an array is said to be equal to one that is not there.
    """
    if absent := [name for name in shared.values() if name not in stored]:
        raise UserError(
            f"{source} has no array {quoted(absent[0])}, which its card names: it is damaged; save the cascade again."
        )
    arrays = {**stored, **{name: stored[earlier] for name, earlier in shared.items()}}
    prefixes = [_PREFIX.format(index) for index in range(count)]
    return [
        {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        for prefix in prefixes
    ]
