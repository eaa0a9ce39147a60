"""Networks that spend by image: exits, gates, thresholds for a budget, and engines that compute only what is needed."""

import importlib
from typing import Any

from jaxprune import plugins
from jaxprune.dynamic.engine import Engine, Served
from jaxprune.dynamic.exit_policy import confidence, exit_of, operate, thresholds
from jaxprune.dynamic.layer_skipping import LayerSkipper
from jaxprune.dynamic.segments import Segment, Segmented
from jaxprune.dynamic.server import Expired, Metrics, Prediction, Refused, Server
from jaxprune.nn.images import require_buildable
from jaxprune.nn.recipe import remember

__all__ = [
    "Engine",
    "Expired",
    "LayerSkipper",
    "Metrics",
    "Prediction",
    "Refused",
    "Segment",
    "Segmented",
    "Served",
    "Server",
    "confidence",
    "create",
    "exit_of",
    "methods",
    "operate",
    "thresholds",
    "tiny",
]


def methods() -> dict[str, type[Segmented]]:
    """Returns {name: class} of every network with exits, found by its file."""
    import jaxprune.dynamic as family

    return plugins.methods(family, Segmented)


def tiny(name: str) -> dict[str, Any]:
    """Returns arguments that make a network small enough for tests; {} if its module has none.

    >>> tiny("dvt")["sides"]
    (2, 3, 4)
    """
    cls = methods().get(name)
    return {} if cls is None else dict(getattr(importlib.import_module(cls.__module__), "TINY", {}))


def create(name: str, **arguments: Any) -> Any:
    """Builds a network with exits.

    Args:
      name: a module of this package, such as "cascade".
      arguments: those of its class, such as `rngs`; a cascade has `networks` instead.

    Raises:
      UserError: there is no such network, or it has no such argument, or one of another type; or there are no random
        numbers.
    """
    import jaxprune.dynamic as family

    cls = plugins.find(family, Segmented, name)
    names = plugins.parameters(cls)
    plugins.check_arguments(cls, arguments, names)
    if "networks" in names:  # a cascade of networks is not rebuilt from plain values
        return cls(**{"networks": (), **arguments})
    require_buildable(arguments.get("dtype"), arguments.get("rngs"))
    arguments = plugins.plain(arguments)
    plugins.check_kinds(cls, arguments)
    return remember(cls(**arguments), "dynamic", {"name": name, **arguments})
