"""Networks that spend by image: exits, gates, thresholds for a budget, and engines that compute only what is needed."""

import importlib
from typing import Any

from jaxprune import plugins
from jaxprune.dynamic.engine import Engine, Served
from jaxprune.dynamic.exit_policy import confidence, exit_of, operate, thresholds
from jaxprune.dynamic.layer_skipping import LayerSkipper
from jaxprune.dynamic.segments import Segment, Segmented
from jaxprune.dynamic.server import Expired, Metrics, Prediction, Refused, Server
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
      arguments: those of its class.

    Raises:
      UserError: there is no such network, or it has no such argument.
    """
    import jaxprune.dynamic as family

    cls = plugins.find(family, Segmented, name)
    plugins.check_arguments(cls, arguments, plugins.parameters(cls))
    network = cls(**arguments)
    # A cascade of networks is not rebuilt from plain values.
    return network if "networks" in arguments else remember(network, "dynamic", {"name": name, **arguments})
